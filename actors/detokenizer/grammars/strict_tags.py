"""The grammar of Qwen3-Coder's calls: parameters in tags, in the order of the function's schema."""

from collections.abc import Sequence
from typing import Any, Final

from pillion.actors.detokenizer.grammars.call_rules import (
    COMMON,
    around,
    json_rule,
    label,
    quoted,
    refusal,
)
from pillion.actors.detokenizer.tool_calls.parameter_values import is_text, parameter_types
from pillion.actors.detokenizer.tool_calls.xml_calls import (
    CALL,
    CALL_END,
    FUNCTION,
    FUNCTION_END,
    PARAMETER,
    PARAMETER_END,
)

_RESTRICTIONS: Final = frozenset(("pattern", "format", "minLength", "maxLength", "const"))
_DEFINITIONS: Final[tuple[str, ...]] = ("$defs", "definitions")


def tag_grammar(functions: Sequence[dict[str, Any]], answer: str | None) -> str:
    """As `strict_grammar`."""
    alternatives = " | ".join(f"function_{place}" for place in range(len(functions)))
    body = f'({alternatives}) CLOSE\nCLOSE: {quoted(FUNCTION_END)} "\\n" {quoted(CALL_END)}'
    ends = " | ".join(map(quoted, (PARAMETER_END, PARAMETER, FUNCTION_END)))
    return (
        f"{COMMON}{around(quoted(CALL), body, answer, quoted(FUNCTION))}"
        f"VALUE: (TEXT & ~HAS_END) {_END}\nHAS_END: TEXT ({ends}) TEXT\nKEY: /[^<>\\n]+/\n"
        + "".join(_function(place, function) for place, function in enumerate(functions))
    )


_END: Final = f'"\\n" {quoted(PARAMETER_END)} "\\n"'


def _function(place: int, function: dict[str, Any]) -> str:
    opening = f"{FUNCTION}{function['name']}>\n"
    head = f"{label(function)}function_{place}: {quoted(opening)}"
    if not function.get("strict"):
        return f'{head} ({quoted(PARAMETER)} KEY ">\\n" VALUE)*\n'
    schema = function.get("parameters") or {}
    types = parameter_types(function)
    required = schema.get("required") or ()
    names, rules = [], ""
    for number, (key, value) in enumerate((schema.get("properties") or {}).items()):
        name = f"parameter_{place}_{number}"
        names.append(name if key in required else f"{name}?")
        opening = f"{PARAMETER}{key}>\n"
        described = value if isinstance(value, dict) else {}
        where = f"parameter {key!r:.80} of function {function['name']!r:.80}"
        value_rule = _value(described, is_text(types[key]), schema, where)
        rules += f"{name}: {quoted(opening)} {value_rule}\n"
    return f"{head} {' '.join(names)}\n{rules}"


def _value(schema: dict[str, Any], text: bool, root: dict[str, Any], where: str) -> str:
    if not text:
        definitions = {key: root[key] for key in _DEFINITIONS if key in root}
        return f"{json_rule({**schema, **definitions})} {_END}"
    restricting = _RESTRICTIONS.intersection(schema)
    if restricting:
        raise refusal(f"{min(restricting)!r} of the text {where} cannot be kept to in this format")
    choices = schema.get("enum")
    if choices:
        return f"({' | '.join(quoted(str(choice)) for choice in choices)}) {_END}"
    return "VALUE"
