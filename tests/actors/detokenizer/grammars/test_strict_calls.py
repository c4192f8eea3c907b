"""Answers that may call strict functions: what each format's grammar lets through, and where it stops."""

import json
import re
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillion.actors.detokenizer.answer_formats import TOOL_FORMATS
from pillion.actors.detokenizer.grammars.engine import GrammarEngine, GrammarError
from pillion.actors.detokenizer.grammars.source import GrammarSource
from pillion.actors.detokenizer.grammars.strict_calls import strict_grammar
from pillion.actors.detokenizer.parsed_output import ParsedOutput
from pillion.actors.detokenizer.tool_calls import deepseek, mistral
from pillion.actors.detokenizer.tool_use import ToolUse
from pillion.runtime.errors import RequestError

MARKERS = ("<|python_tag|>", *mistral.MARKERS, *deepseek.MARKERS)
IDS = {marker: 256 + place for place, marker in enumerate(MARKERS)}
TOKENS = [*(bytes([byte]) for byte in range(256)), *(marker.encode() for marker in MARKERS)]
ENGINE = GrammarEngine(TOKENS, list(IDS.values()))
PARAMETERS = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "s": {"type": "string"},
        "e": {"enum": ["x", "y"]},
        "o": {"$ref": "#/$defs/o"},
    },
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"o": {"type": "object", "required": ["k"]}},
}
FUNCTIONS = ({"name": "f", "strict": True, "parameters": PARAMETERS}, {"name": "g"})
FORM = (
    '%json {"type": "object", "properties": {"z": {"type": "null"}}, "additionalProperties": false}'
)
DS_BEGIN, DS_END, DC_BEGIN, DC_END, DS_SEP = deepseek.MARKERS


def token_ids(text: str, special: bool) -> Iterator[int]:
    pattern = "|".join(map(re.escape, MARKERS))
    for part in re.split(f"({pattern})", text):
        if special and part in IDS:
            yield IDS[part]
        else:
            yield from part.encode()


def followed(form: str, text: str, answer: str | None = None, special: bool = True) -> str:
    """As much of the text as the grammar lets through, and whether the answer may end there."""
    grammar = strict_grammar(form, FUNCTIONS, IDS.get if special else lambda _: None, answer)
    source = GrammarSource(kind="lark", text=grammar)
    end_id = 3
    matcher = ENGINE.start(ENGINE.compile(source), [end_id])
    taken = b""
    for token_id in token_ids(text, special):
        mask = matcher.mask()
        if not mask[token_id // 8] >> token_id % 8 & 1:
            return taken.decode() + "|"
        matcher.advance(array("i", [token_id]).tobytes())
        taken += TOKENS[token_id]
    return taken.decode() + ("" if matcher.mask()[0] >> end_id & 1 else "...")


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def bare(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def coder(name: str, *parameters: tuple[str, str]) -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


A3, EMPTY = '{"a": 3}', "{}"
PLAIN = [
    (form, text)
    for form in ("hermes", "qwen3_coder", "json", "llama3_json", "mistral", "deepseek")
    for text in ("", "Hello <b> {}.", "Ünï 🙂\n\n")
]
CALLS = [
    ("hermes", f"I look.\n{hermes('f', A3)}\n{hermes('g', EMPTY)} ok"),
    ("hermes", hermes("f", A3)),
    ("json", bare("f", A3)),
    ("json", f"```json\n[{bare('f', A3)}, {bare('g', EMPTY)}]\n```"),
    ("llama3_json", f"So <|python_tag|>{bare('f', A3, 'parameters')}"),
    ("llama3_json", f"{bare('g', EMPTY, 'parameters')}; {bare('f', A3, 'parameters')}"),
    ("mistral", f"Hi[TOOL_CALLS] [{bare('f', A3)}]"),
    ("mistral", f"[TOOL_CALLS]f[ARGS]{A3}[TOOL_CALLS]g[ARGS]{EMPTY}"),
    ("deepseek", f"Hi{DS_BEGIN}{DC_BEGIN}f{DS_SEP}{A3}{DC_END}{DS_END}"),
    (
        "deepseek",
        f"{DS_BEGIN}{DC_BEGIN}function{DS_SEP}g\n```json\n{EMPTY}\n```{DC_END}"
        f"{DC_BEGIN}f{DS_SEP}{A3}{DC_END}{DS_END}",
    ),
    (
        "qwen3_coder",
        "x " + coder("f", ("a", "3"), ("s", "b\nc <b>"), ("e", "y"), ("o", '{"k": 1}')),
    ),
    ("qwen3_coder", coder("g", ("any", "thing"))),
]
# What looks like a call in part.
OTHERS = [
    ("json", '{"city": "x"}'),
    ("json", '[1, {"name": "f"}]'),
    ("json", '{"name": "John", "arguments": 3}'),
]
GOOD = PLAIN + CALLS + OTHERS


@pytest.mark.parametrize(("form", "text"), GOOD)
def test_what_fits_goes_through(form: str, text: str) -> None:
    assert followed(form, text) == text


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ¦"x"'),
        ("hermes", '<tool_call>{"¦arguments"'),
        ("hermes", '<tool_call>{"name": "¦h"'),
        ("json", '{"name": "f", "arguments": {"a": ¦"x"'),
        ("json", '{"arguments¦": {"a": "x"'),
        ("json", '```json\n[{"name": "f", "arguments": {"¦b"'),
        ("json", '{"name": "g", "arguments": {}}; {"name": "f", "arguments": {"a": ¦"x"'),
        ("llama3_json", '{"name": "f", "parameters": {"a": ¦"x"'),
        ("llama3_json", 'So <|python_tag|>{"name": "f", "parameters": {"a": ¦"x"'),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": ¦"x"'),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": ¦"x"'),
        ("deepseek", f'{DS_BEGIN}{DC_BEGIN}f{DS_SEP}{{"a": ¦"x"'),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n¦x"),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=¦s>"),
        ("qwen3_coder", "A <function¦=f>"),
    ],
)
def test_what_does_not_fit_is_stopped_where_it_begins(form: str, text: str) -> None:
    """It is stopped at the bar."""
    fits, _, rest = text.partition("¦")
    assert followed(form, fits + rest) == fits + "|"


@pytest.mark.parametrize(("form", "opening"), [("mistral", "[TOOL_CALLS]"), ("deepseek", DC_BEGIN)])
def test_markers_that_are_text_begin_calls_too(form: str, opening: str) -> None:
    for each, text in CALLS:
        if each == form:
            assert followed(form, text, special=False) == text
    assert followed(form, f"{opening} x", special=False).endswith("|")


@pytest.mark.parametrize(
    ("form", "marker"),
    [
        ("mistral", "[TOOL_CALLS]"),
        ("deepseek", DC_BEGIN),
        ("deepseek", DS_BEGIN),
        ("llama3_json", "<|python_tag|>"),
    ],
)
@pytest.mark.parametrize("special", [True, False])
def test_no_text_spells_a_marker_out(form: str, marker: str, special: bool) -> None:
    grammar = strict_grammar(form, FUNCTIONS, IDS.get if special else lambda _: None, None)
    matcher = ENGINE.start(ENGINE.compile(GrammarSource(kind="lark", text=grammar)), [3])
    with pytest.raises(GrammarError, match="does not fit"):
        matcher.advance(array("i", list(f"Hm {marker} x".encode())).tobytes())


@pytest.mark.parametrize("form", ["hermes", "qwen3_coder", "mistral", "deepseek"])
def test_a_form_beside_it_is_for_answers_that_call_nothing(form: str) -> None:
    assert followed(form, '{"z": null}', FORM) == '{"z": null}'
    assert followed(form, "Hello", FORM) == "|"
    calls = next(text for each, text in CALLS if each == form and not text[0].isalpha())
    assert followed(form, calls, FORM) == calls


@pytest.mark.parametrize(
    ("form", "answer"),
    [("json", FORM), ("llama3_json", FORM), ("pythonic", None), ("gpt_oss", None)],
)
def test_what_cannot_be_held_is_refused(form: str, answer: str | None) -> None:
    with pytest.raises(RequestError, match='Leave "strict" out') as caught:
        strict_grammar(form, FUNCTIONS, IDS.get, answer)
    assert (caught.value.code, caught.value.param) == ("unsupported", "tools")


def test_restrictions_that_plain_text_cannot_be_held_to_are_refused() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "x+"}}}
    function = {"name": "f", "strict": True, "parameters": schema}
    with pytest.raises(RequestError, match="'pattern' of the text parameter 'a' of function 'f'"):
        strict_grammar("qwen3_coder", [function], IDS.get, None)


@pytest.mark.parametrize("form", sorted({form for form, _ in CALLS}))
def test_a_schema_that_cannot_be_kept_to_is_named(form: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    bad = {"name": "bad", "strict": True, "parameters": schema}
    grammar = strict_grammar(form, [*FUNCTIONS, bad], IDS.get, None)
    with pytest.raises(GrammarError) as caught:
        ENGINE.compile(GrammarSource(kind="lark", text=grammar))
    assert str(caught.value) == (
        'the schema of function "bad" cannot be kept to: Unimplemented keys: ["uniqueItems"]'
    )


@pytest.mark.parametrize("form", sorted({form for form, _ in CALLS}))
@given(data=st.data())
def test_whatever_is_written_calls_are_those_of_the_schema(form: str, data: Any) -> None:
    """A text of shreds, of which the grammar takes what it takes: the parser finds no call beside the schema."""
    shreds = sorted(
        {text[at : at + 7] for each, text in GOOD if each == form for at in range(0, len(text), 5)}
    )
    grammar = strict_grammar(form, FUNCTIONS, IDS.get, None)
    matcher = ENGINE.start(ENGINE.compile(GrammarSource(kind="lark", text=grammar)), [3])
    text = b""
    for _ in range(data.draw(st.integers(0, 12))):
        for token_id in token_ids(data.draw(st.sampled_from(shreds)), special=True):
            mask = matcher.mask()
            if mask[token_id // 8] >> token_id % 8 & 1:
                matcher.advance(array("i", [token_id]).tobytes())
                text += TOKENS[token_id]
    output = ParsedOutput(str)
    parser = TOOL_FORMATS[form].parser(output, ToolUse("auto", FUNCTIONS))
    parser.push(text.decode(errors="ignore"))
    parser.finish()
    for call in output.take().tool_calls if output.calls_complete else ():
        assert call.name in ("f", "g")
        arguments = json.loads(call.arguments)
        if call.name == "f":
            assert isinstance(arguments["a"], int)
            assert set(arguments) <= set(PARAMETERS["properties"])  # type: ignore[arg-type,call-overload]
