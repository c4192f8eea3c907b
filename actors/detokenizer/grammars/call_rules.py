"""Rules in llguidance's Lark for calls of functions as JSON objects whose arguments match the functions' schemas."""

import json
from collections.abc import Sequence
from typing import Any, Final

from pillion.actors.detokenizer.grammars.source import WHITESPACE
from pillion.runtime.errors import RequestError

# What every grammar here may use.
COMMON: Final = r"""
TEXT: /(?s:.*)/
WS: /[ \t\n]{0,8}/
TAIL: WS "}"
COMMA: WS "," WS
"""
PARAM: Final = "tools"
# A comment above rules: whose schema they hold to. GrammarEngine names it where the schema is no good.
LABEL: Final = "// of "
_FREE_ARGUMENTS: Final = {"type": "object"}


def refusal(reason: str) -> RequestError:
    """Why a function cannot be strict here, and what to do about it."""
    return RequestError(
        f'{PARAM}: "strict" with tool_choice "auto" is not possible here: {reason}. Leave "strict" out, or use'
        ' tool_choice "required" or a function\'s name, which hold to the schema in any case',
        "unsupported",
        PARAM,
    )


def quoted(text: str) -> str:
    """A literal of the grammar."""
    return json.dumps(text)


def around(opening: str, body: str, answer: str | None, *also: str) -> str:
    """The rule `start`: calls, each behind the opening, with free text around them or in place of the answer.

    `also`: what else may not come in the free text.
    """
    if answer is not None:
        return f"start: answer | (WS {opening} WS calls)+\n{LABEL}the answer\nanswer: {answer}\ncalls: {body}\n"
    if opening.startswith("<["):
        # A token that is no text; the same spelled out would be read as it is.
        rules, hidden = f"start: (PLAIN {opening} calls)* PLAIN\n", also
    else:
        rules, hidden = f"start: (OPEN calls)* PLAIN\nOPEN: PLAIN {opening} WS\n", (opening, *also)
    return (
        f"{rules}calls: {body}\nPLAIN: TEXT & ~HAS_CALL\n"
        f"HAS_CALL: TEXT ({' | '.join(hidden)}) TEXT\n"
    )


def json_rule(schema: dict[str, Any], whitespace: str = WHITESPACE) -> str:
    """A JSON value that matches this schema. `whitespace`: a regex of what may stand between tokens; "": nothing."""
    flexible: dict[str, Any] = {"whitespace_flexible": bool(whitespace)}
    if whitespace:
        flexible["whitespace_pattern"] = whitespace
    return f"%json {json.dumps({**schema, 'x-guidance': flexible})}"


def arguments_rules(functions: Sequence[dict[str, Any]]) -> str:
    """`args_I` for each function: what its schema says if it is strict, else any object."""
    return "".join(
        f"{label(function)}args_{place}: {json_rule(_arguments(function))}\n"
        for place, function in enumerate(functions)
    )


def labelled_schemas(functions: Sequence[dict[str, Any]]) -> str:
    """A grammar with the arguments of each function, whether it is strict or not."""
    rules = arguments_rules([{**function, "strict": True} for function in functions])
    return f"start: {one_of('args', functions)}\n{rules}"


def label(function: dict[str, Any]) -> str:
    """The comment above rules that hold to a function's schema."""
    return f"{LABEL}function {quoted(function['name'])}\n"


def object_rules(
    functions: Sequence[dict[str, Any]], key: str, lead: str = "", name: str = "call"
) -> str:
    """The rule `call`: one object with a name and, under `key`, arguments. `lead` is part of its first lexeme."""
    rules = f"{name}: {one_of(name, functions)}\n"
    for place, function in enumerate(functions):
        head = f"{name.upper()}_HEAD_{place}"
        value = quoted(json.dumps(function["name"]))
        rules += (
            f"{name}_{place}: {head} args_{place} TAIL\n"
            f'{head}: {lead} "{{" WS {member("name")} {value} WS "," WS {member(key)}\n'
        )
    return rules


def one_of(rule: str, functions: Sequence[dict[str, Any]]) -> str:
    """The alternatives `rule_0 | rule_1 | ...`."""
    return " | ".join(f"{rule}_{place}" for place in range(len(functions)))


def member(key: str) -> str:
    """The key of an object and its colon."""
    return f'{quoted(json.dumps(key))} WS ":" WS'


def _arguments(function: dict[str, Any]) -> dict[str, Any]:
    if not function.get("strict"):
        return _FREE_ARGUMENTS
    return function.get("parameters") or {"type": "object", "additionalProperties": False}
