"""Grammars for answers that may call functions and, once they do, hold to the schemas of strict ones.

Each says how a format's calls begin, so that nothing else can begin like one.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from pillion.actors.detokenizer.answer_formats import PYTHON_TAG, TOOL_CALL
from pillion.actors.detokenizer.grammars.call_rules import (
    COMMON,
    arguments_rules,
    around,
    member,
    object_rules,
    one_of,
    quoted,
    refusal,
)
from pillion.actors.detokenizer.grammars.strict_tags import tag_grammar
from pillion.actors.detokenizer.tool_calls import deepseek, mistral

_FENCE: Final = "WS FENCE"
_FENCED_LIST: Final = f'{_FENCE} "[" WS'
_SEPARATORS: Final = "/[ \\t\\n,;]*/"

Functions = Sequence[dict[str, Any]]
SpecialTokens = Callable[[str], int | None]

# Other keys with which an object may begin that is read as a call.
_OTHER_KEYS: Final = ("arguments", "parameters", "function", "type", "id", "index")


def strict_grammar(
    form: str, functions: Functions, tokens: SpecialTokens, answer: str | None
) -> str:
    """The grammar of an answer in this format, in Lark.

    `tokens`: ids of markers that are no text. `answer`: the rule that the answer follows if it is no call; None: it
    is free. Raises RequestError where that cannot be had.
    """
    match form:
        case "hermes":
            body = f"call CLOSE\nCLOSE: WS {quoted(TOOL_CALL[1])}"
            rules = object_rules(functions, "arguments") + arguments_rules(functions)
            return COMMON + around(quoted(TOOL_CALL[0]), body, answer) + rules
        case "qwen3_coder":
            return tag_grammar(functions, answer)
        case "mistral":
            return _mistral(functions, tokens, answer)
        case "deepseek":
            return _deepseek(functions, tokens, answer)
        case "json" | "llama3_json" if answer is None:
            return _bare(functions, None if form == "json" else PYTHON_TAG, tokens)
        case "json" | "llama3_json":
            raise refusal("a form of the answer beside it cannot be told from a call")
        case _:
            raise refusal(f"calls in the format {form} cannot be held to a schema")


def _marker(text: str, tokens: SpecialTokens) -> str:
    token_id = tokens(text)
    return quoted(text) if token_id is None else f"<[{token_id}]>"


def _bare(functions: Functions, tag: str | None, tokens: SpecialTokens) -> str:
    """Calls at the beginning of the answer, or behind the tag where that is a token; no text spells it out."""
    key = "arguments" if tag is None else "parameters"
    tag_id = None if tag is None else tokens(tag)
    behind_tag = "" if tag_id is None else f" (<[{tag_id}]> calls)*"
    text = "TEXT" if tag is None else "TEXT & ~HAS_TAG"
    hidden = "" if tag is None else f"HAS_TAG: TEXT {quoted(tag)} TEXT\n"
    names = "|".join(quoted(json.dumps(function["name"])) for function in functions)
    others = "|".join(quoted(json.dumps(other)) for other in _OTHER_KEYS)
    return (
        f"start: (PLAIN | calls){behind_tag}\n"
        f"calls: many (COMMA call)* LIST_END REST | one next* AFTER\nREST: {text}\n{hidden}"
        'LIST_END: WS "]"\n'
        f'AFTER: {text} & ~GOES_ON\nGOES_ON: {_SEPARATORS} "{{" TEXT\n'
        'FENCE: ("```json" | "```")? WS\n'
        f"PLAIN: {text} & ~IS_CALL\n"
        f'IS_CALL: WS FENCE ("[" WS)? "{{" WS ({member("name")} ({names}) | {others}) TEXT\n'
        f"{COMMON}{arguments_rules(functions)}{object_rules(functions, key)}"
        f"{object_rules(functions, key, _FENCE, 'one')}"
        f"{object_rules(functions, key, _FENCED_LIST, 'many')}"
        f"{object_rules(functions, key, _SEPARATORS, 'next')}"
    )


def _mistral(functions: Functions, tokens: SpecialTokens, answer: str | None) -> str:
    arguments = _marker(mistral.ARGUMENTS, tokens)
    named = ""
    for place, function in enumerate(functions):
        named += f"named_{place}: NAME_{place} {arguments} args_{place}\n"
        named += f"NAME_{place}: WS {quoted(function['name'])}\n"
    return (
        f"{COMMON}{around(_marker(mistral.CALLS, tokens), 'list | named', answer, quoted(mistral.CALLS))}"
        'list: LIST_BEGIN call (COMMA call)* LIST_END\nLIST_BEGIN: WS "[" WS\nLIST_END: WS "]"\n'
        f"named: {one_of('named', functions)}\n{named}"
        f"{object_rules(functions, 'arguments')}{arguments_rules(functions)}"
    )


def _deepseek(functions: Functions, tokens: SpecialTokens, answer: str | None) -> str:
    _, all_end, begin, end, separator = (_marker(each, tokens) for each in deepseek.MARKERS)
    each = ""
    for place, function in enumerate(functions):
        name, fenced_name = quoted(function["name"]), quoted(function["name"] + "\n```json\n")
        each += f"call_{place}: {name} {separator} args_{place}\n"
        each += f' | "function" {separator} {fenced_name} args_{place} "\\n```"\n'
    opening = _marker(deepseek.CALLS_BEGIN, tokens)
    also = (quoted(deepseek.CALLS_BEGIN), quoted(deepseek.CALL_BEGIN))
    return (
        f"{COMMON}{around(opening, f'(call WS)+ {all_end}', answer, *also)}"
        f"call: {begin} ({one_of('call', functions)}) {end}\n{each}{arguments_rules(functions)}"
    )
