"""What a client demands of an answer's form, as the text that is compiled."""

import json
from typing import Final, Literal

import msgspec

from pillion.messages.structured_outputs import StructuredOutputsParams
from pillion.runtime.errors import InvalidRequest

PARAM: Final = "structured_outputs"
MAX_REGEX_CHARS: Final = 8 * 1024
MAX_SOURCE_CHARS: Final = 512 * 1024
MAX_CHOICES: Final = 1024
# One space, or a new line and its indentation: a model that likes white space cannot go on with it for ever.
WHITESPACE: Final = r"[ \t]|\n[ \t]{0,40}"
NO_WHITESPACE: Final = ""

SourceKind = Literal["json", "regex", "lark", "gbnf"]


class GrammarSource(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A grammar before it is compiled. Equal sources have equal grammars."""

    kind: SourceKind
    text: str
    whitespace: str = ""  # a regex, for "json"; "": none
    # In Lark, each schema of which `text` is made under its label: compiled only to hear whose is no good.
    parts: str = ""


def source_of(structure: StructuredOutputsParams) -> GrammarSource:
    """The source of a structure. Raises InvalidRequest for what is too long to look at."""
    kind = structure.kind
    if kind in ("json", "json_object"):
        return GrammarSource(
            kind="json",
            text=_bounded(kind, _schema(structure), MAX_SOURCE_CHARS),
            whitespace=_whitespace(structure),
        )
    if kind == "regex":
        text = _bounded("regex", structure.regex or "", MAX_REGEX_CHARS)
        return GrammarSource(kind="regex", text=text)
    if kind == "choice":
        return GrammarSource(kind="regex", text=_alternatives(structure.choice or []))
    text = _bounded("grammar", structure.grammar or "", MAX_SOURCE_CHARS)
    return GrammarSource(kind="gbnf" if "::=" in text else "lark", text=text)


def _schema(structure: StructuredOutputsParams) -> str:
    schema = structure.json
    if schema is None:
        return '{"type": "object"}'
    try:
        if not isinstance(schema, str):
            return json.dumps(schema, ensure_ascii=False)
        parsed = json.loads(_bounded("json", schema, MAX_SOURCE_CHARS))
    except RecursionError as error:
        raise InvalidRequest(f"{PARAM}.json is nested too deeply", PARAM) from error
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{PARAM}.json is not JSON: {error}", PARAM) from error
    if not isinstance(parsed, dict | bool):
        raise InvalidRequest(
            f"{PARAM}.json must be a JSON schema, which is an object, got {schema:.80}", PARAM
        )
    return schema


def _whitespace(structure: StructuredOutputsParams) -> str:
    if structure.disable_any_whitespace:
        return NO_WHITESPACE
    pattern = structure.whitespace_pattern
    if pattern is None:
        return WHITESPACE
    return _bounded("whitespace_pattern", pattern, MAX_REGEX_CHARS)


def _alternatives(choices: list[str]) -> str:
    if len(choices) > MAX_CHOICES:
        raise InvalidRequest(
            f"{PARAM}.choice takes at most {MAX_CHOICES} strings, got {len(choices)}", PARAM
        )
    text = "|".join("".join(map(_escaped, choice)) for choice in choices)
    return _bounded("choice", text, MAX_SOURCE_CHARS)


def _escaped(character: str) -> str:
    return (
        character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}"
    )


def _bounded(field: str, text: str, most: int) -> str:
    if len(text) > most:
        raise InvalidRequest(f"{PARAM}.{field} may have {most} characters, got {len(text)}", PARAM)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{PARAM}.{field} is not valid Unicode: {error}", PARAM) from error
    return text
