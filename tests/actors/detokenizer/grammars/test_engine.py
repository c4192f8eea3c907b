"""Grammars over a vocabulary of bytes and a few words: what may follow, and what cannot work."""

import json
import random
import re

import numpy as np
import pytest

from pillion.actors.detokenizer.grammars.engine import GrammarEngine, GrammarError, Matcher
from pillion.actors.detokenizer.grammars.source import source_of
from pillion.messages.codec import pack_ids
from pillion.messages.structured_outputs import StructuredOutputsParams

WORDS = [b'{"', b'"}', b'": ', b"true", b" the", b"12"]
SPECIAL, END, OTHER_END, EMPTY = 300, 301, 302, 303
NUM_TOKENS = 310
TOKENS = [bytes([byte]) for byte in range(256)] + WORDS
TOKENS += [b""] * (NUM_TOKENS - len(TOKENS))
TOKENS[SPECIAL], TOKENS[END], TOKENS[OTHER_END] = b"<think>", b"<end>", b"<other>"


@pytest.fixture(scope="module")
def engine() -> GrammarEngine:
    return GrammarEngine(TOKENS, [SPECIAL, END, OTHER_END])


def start(engine: GrammarEngine, **structure: object) -> Matcher:
    source = source_of(StructuredOutputsParams(**structure))  # type: ignore[arg-type]
    return engine.start(engine.compile(source), [END, OTHER_END])


def allowed(matcher: Matcher) -> set[int]:
    mask = matcher.mask()
    assert len(mask) == -(-NUM_TOKENS // 32) * 4
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def spell(matcher: Matcher, text: str) -> None:
    matcher.advance(pack_ids(list(text.encode())))


def random_answer(matcher: Matcher, seed: int, most: int = 400) -> str | None:
    """Tokens drawn from the masks; None if the answer does not end."""
    choose = random.Random(seed)
    answer = b""
    for _ in range(most):
        if matcher.is_complete:
            return answer.decode()
        token = choose.choice(sorted(allowed(matcher)))
        if token in (END, OTHER_END):
            return answer.decode()
        answer += TOKENS[token]
        matcher.advance(pack_ids([token]))
    return None


def test_a_mask_has_what_fits_and_nothing_else(engine: GrammarEngine) -> None:
    matcher = start(engine, regex="[0-9]+")
    digits = {*b"0123456789", TOKENS.index(b"12")}
    assert allowed(matcher) == digits
    matcher.advance(pack_ids([TOKENS.index(b"12")]))
    assert allowed(matcher) == digits | {END, OTHER_END}
    assert not matcher.is_complete


def test_an_answer_that_nothing_can_follow_is_complete(engine: GrammarEngine) -> None:
    matcher = start(engine, choice=["yes", "no"])
    assert allowed(matcher) == {ord("y"), ord("n")}
    spell(matcher, "no")
    assert matcher.is_complete
    assert matcher.num_tokens == 2


def test_special_tokens_are_no_text(engine: GrammarEngine) -> None:
    matcher = start(engine, json={"type": "string"})
    spell(matcher, '"')
    assert not {SPECIAL, END, OTHER_END, EMPTY} & allowed(matcher)
    assert TOKENS.index(b" the") in allowed(matcher)


def test_a_sequence_may_begin_with_what_it_has(engine: GrammarEngine) -> None:
    matcher = start(engine, json_object=True)
    spell(matcher, '{"a": 1')
    again = start(engine, json_object=True)
    for character in '{"a": 1':
        spell(again, character)
    assert matcher.mask() == again.mask()


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
    "required": ["name", "tags", "size"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_drawn_from_masks_parses(engine: GrammarEngine, seed: int) -> None:
    answer = random_answer(start(engine, json=SCHEMA), seed)
    if answer is not None:
        value = json.loads(answer)
        assert set(value) == {"name", "tags", "size"}
        assert set(value["tags"]) <= {"a", "b"}
    regex = r"(\d{2}-)+x?|none"
    drawn = random_answer(start(engine, regex=regex), seed)
    assert drawn is None or re.fullmatch(regex, drawn)
    gbnf = 'root ::= "<" ("a" | root)* ">"'
    nested = random_answer(start(engine, grammar=gbnf), seed)
    assert nested is None or nested.count("<") == nested.count(">") > 0


BAD = [
    ("regex", "["),
    ("regex", "(?P<"),
    ("regex", r"(a)\1"),
    ("regex", "[^\\s\\S]"),
    ("json", {"type": 7}),
    ("json", {"$ref": "#"}),
    ("json", {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    ("json", {"$ref": "#/$defs/nowhere"}),
    ("json", {"$ref": "http://example.com/schema"}),
    ("json", {"allOf": [{"type": "string"}, {"type": "integer"}]}),
    ("json", {"type": "array", "uniqueItems": True}),
    ("grammar", "root ::= ("),
    ("grammar", "start: x"),
    ("grammar", "start: start"),
    ("grammar", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
]


@pytest.mark.parametrize(("field", "value"), BAD, ids=str)
def test_what_cannot_work_is_said(engine: GrammarEngine, field: str, value: object) -> None:
    source = source_of(StructuredOutputsParams(**{field: value}))  # type: ignore[arg-type]
    with pytest.raises(GrammarError, match=r"\w"):
        engine.check(source)


@pytest.mark.parametrize(
    ("regex", "why"),
    [
        ("[", "unclosed character class"),
        ("a?" * 2000 + "(", "unclosed group"),
        (r"(a)\1", "backreferences are not supported"),
        (
            "\nerror: a\n(?=a)",
            "look-around, including look-ahead and look-behind, is not supported",
        ),
    ],
    ids=["short", "long", "reference", "look"],
)
def test_what_is_wrong_with_a_regex_is_said_without_it(
    engine: GrammarEngine, regex: str, why: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        engine.check(source_of(StructuredOutputsParams(regex=regex)))
    assert str(caught.value) == f"invalid regex: {why}"


def test_a_token_outside_the_grammar_is_an_error(engine: GrammarEngine) -> None:
    matcher = start(engine, regex="a+")
    with pytest.raises(GrammarError, match="does not fit") as caught:
        spell(matcher, "b")
    assert caught.value.code == "internal"


ONE_OF_MANY = {
    "anyOf": [
        {"type": "object", "properties": {f"p{place}": {}}, "required": [f"p{place}"]}
        for place in range(3000)
    ]
}


@pytest.mark.parametrize(
    ("structure", "text"),
    [({"grammar": 'root ::= "a" root'}, "aa"), ({"json": ONE_OF_MANY}, "{")],
    ids=["endless", "wide"],
)
def test_what_outgrows_the_limits_is_the_clients_to_change(
    engine: GrammarEngine, structure: dict[str, object], text: str
) -> None:
    source = source_of(StructuredOutputsParams(**structure))  # type: ignore[arg-type]
    engine.check(source)
    matcher = start(engine, **structure)
    for character in text[:-1]:
        spell(matcher, character)
        matcher.mask()
    with pytest.raises(GrammarError, match="Write fewer alternatives") as caught:
        spell(matcher, text[-1])
    assert caught.value.code == "invalid_request"


def test_what_no_token_can_spell_is_an_error() -> None:
    engine = GrammarEngine([b"a", b"b", b"<end>"], [2])
    source = source_of(StructuredOutputsParams(regex="ac"))
    matcher = engine.start(engine.compile(source), [2])
    matcher.advance(pack_ids([0]))
    with pytest.raises(GrammarError, match=r"spell|no text"):
        matcher.mask()
