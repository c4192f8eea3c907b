"""What clients ask for, as what is compiled."""

import json
import re

import pytest

from pillion.actors.detokenizer.grammars.source import (
    MAX_CHOICES,
    MAX_REGEX_CHARS,
    MAX_SOURCE_CHARS,
    NO_WHITESPACE,
    WHITESPACE,
    source_of,
)
from pillion.messages.structured_outputs import StructuredOutputsParams
from pillion.runtime.errors import InvalidRequest


def test_a_schema_is_the_same_as_text_and_as_an_object() -> None:
    schema = {"type": "string"}
    as_object = source_of(StructuredOutputsParams(json=schema))
    assert as_object == source_of(StructuredOutputsParams(json=json.dumps(schema)))
    assert (as_object.kind, as_object.whitespace) == ("json", WHITESPACE)


def test_json_object_is_a_schema_of_objects() -> None:
    source = source_of(StructuredOutputsParams(json_object=True))
    assert (source.kind, json.loads(source.text)) == ("json", {"type": "object"})


def test_white_space_can_be_chosen() -> None:
    none = StructuredOutputsParams(json_object=True, disable_any_whitespace=True)
    assert source_of(none).whitespace == NO_WHITESPACE
    some = StructuredOutputsParams(json_object=True, whitespace_pattern=" ?")
    assert source_of(some).whitespace == " ?"


def test_the_usual_white_space_ends() -> None:
    assert re.fullmatch(WHITESPACE, "\n" + " " * 40)
    assert not re.fullmatch(WHITESPACE, "\n\n")
    assert not re.fullmatch(WHITESPACE, "  ")


def test_choices_are_taken_literally() -> None:
    choices = ["a.b", "x|y", "(", "ü 😀", "\n", "[^a]"]
    source = source_of(StructuredOutputsParams(choice=choices))
    assert source.kind == "regex"
    # Python spells the same escapes differently.
    pattern = re.sub(
        r"\\x\{([0-9a-f]+)\}", lambda hit: re.escape(chr(int(hit[1], 16))), source.text
    )
    assert all(re.fullmatch(pattern, choice) for choice in choices)
    assert not re.fullmatch(pattern, "axb")


def test_grammars_are_told_apart() -> None:
    assert source_of(StructuredOutputsParams(grammar='root ::= "a"')).kind == "gbnf"
    assert source_of(StructuredOutputsParams(grammar='start: "a"')).kind == "lark"


@pytest.mark.parametrize(
    ("structure", "said"),
    [
        (StructuredOutputsParams(regex="a?" * 500_000), str(MAX_REGEX_CHARS)),
        (StructuredOutputsParams(grammar="a" * (MAX_SOURCE_CHARS + 1)), str(MAX_SOURCE_CHARS)),
        (StructuredOutputsParams(json=" " * (MAX_SOURCE_CHARS + 1)), str(MAX_SOURCE_CHARS)),
        (StructuredOutputsParams(choice=["a"] * (MAX_CHOICES + 1)), str(MAX_CHOICES)),
        (StructuredOutputsParams(json='"hello"'), "must be a JSON schema"),
        (StructuredOutputsParams(json="hello"), "is not JSON"),
        (StructuredOutputsParams(json='{"items":' * 2000 + "{}" + "}" * 2000), "nested too deeply"),
        (StructuredOutputsParams(json={"const": object()}), "not JSON"),
        (StructuredOutputsParams(regex="a\ud800"), "not valid Unicode"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_what_is_too_long_or_senseless_is_refused(
    structure: StructuredOutputsParams, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(said)) as caught:
        source_of(structure)
    assert caught.value.param == "structured_outputs"
