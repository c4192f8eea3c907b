"""Every format's parser: what it finds, and that no way of cutting the text changes it."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsing import Found, cuttings, parse
from written_answers import CALLS, TOOLS, Written

from pillion.actors.detokenizer.answer_formats import TOOL_FORMATS
from pillion.actors.detokenizer.parsed_output import OutputParser, ParsedOutput

# Every pair of cuts of longer texts would take too long; hypothesis tries some below.
PAIRS_UP_TO_CHARS = 60


def find(written: Written, pieces: list[str]) -> Found:
    def make(output: ParsedOutput) -> OutputParser:
        return TOOL_FORMATS[written.form].parser(output, TOOLS)

    return parse(make, pieces)


@pytest.mark.parametrize("written", CALLS, ids=lambda written: written.id)
def test_what_is_found_does_not_depend_on_the_pieces(written: Written) -> None:
    most_cuts = 2 if len(written.text) <= PAIRS_UP_TO_CHARS else 1
    for pieces in cuttings(written.text, most_cuts):
        found = find(written, pieces)
        assert (found.content, found.calls) == (written.content, written.calls), pieces
        assert found.complete == (bool(written.calls) and written.complete), pieces


@given(st.data())
def test_any_cutting(data: st.DataObject) -> None:
    written = data.draw(st.sampled_from(CALLS))
    cuts = data.draw(st.sets(st.integers(0, len(written.text))))
    edges = [0, *sorted(cuts), len(written.text)]
    pieces = [written.text[start:end] for start, end in pairwise(edges)]
    found = find(written, pieces)
    assert (found.content, found.calls) == (written.content, written.calls)


SHREDS = sorted({text for written in CALLS for text in (written.text[:9], written.text[-9:])})


@pytest.mark.parametrize("form", TOOL_FORMATS)
@given(pieces=st.lists(st.sampled_from([*SHREDS, *'{}[]",:\\(=)', "name", "arguments", " "])))
def test_garbage_is_read_alike_in_one_piece_and_in_many(form: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    written = Written(form, text)
    whole = find(written, [text])
    assert whole == find(written, pieces) == find(written, list(text))


def test_calls_that_are_complete_have_json_arguments() -> None:
    for written in CALLS:
        for _, arguments in find(written, [written.text]).calls[: None if written.complete else -1]:
            assert isinstance(json.loads(arguments), dict)


def test_there_are_enough_written_answers() -> None:
    assert len(CALLS) >= 50
    assert {written.form for written in CALLS} == set(TOOL_FORMATS) - {"gpt_oss"}
