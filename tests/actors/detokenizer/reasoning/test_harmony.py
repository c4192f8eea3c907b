"""gpt-oss's channels."""

import pytest
from parsing import Found, cuttings, parse
from written_answers import NESTED, WEATHER

from pillion.actors.detokenizer.parsed_output import OutputParser, ParsedOutput
from pillion.actors.detokenizer.reasoning.harmony import HarmonyParser

ANALYSIS = "<|channel|>analysis<|message|>The user asks."
CALL = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"


def find(pieces: list[str], *, calls: bool = True) -> Found:
    def make(output: ParsedOutput) -> OutputParser:
        return HarmonyParser(output, calls=calls)

    return parse(make, pieces)


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        (
            f"{ANALYSIS}<|end|><|start|>assistant<|channel|>final<|message|>It is 4.\n",
            "The user asks.",
            "It is 4.\n",
            [],
        ),
        ("<|channel|>final<|message|>Hi", "", "Hi", []),
        (f"{ANALYSIS}<|end|><|start|>assistant{CALL}{WEATHER}", "The user asks.", "", [WEATHER]),
        (f"{CALL}{NESTED}<|call|>", "", "", [NESTED]),
        (
            f" to=functions.get_weather<|channel|>commentary json<|message|>{WEATHER}<|call|>",
            "",
            "",
            [WEATHER],
        ),
        (
            f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL}{WEATHER}<|call|>",
            "",
            "I look.",
            [WEATHER],
        ),
        (ANALYSIS, "The user asks.", "", []),
        ("Hello <|there", "", "Hello <|there", []),
        (f"{ANALYSIS}<|end|><|start|>assist", "The user asks.", "", []),
    ],
)
def test_channels(text: str, reasoning: str, content: str, calls: list[str]) -> None:
    for pieces in cuttings(text, 1):
        found = find(pieces)
        assert (found.reasoning, found.content) == (reasoning, content), pieces
        assert found.calls == [("get_weather", each) for each in calls]


def test_messages_of_one_channel_are_paragraphs() -> None:
    text = f"{ANALYSIS}<|end|><|start|>assistant{ANALYSIS}<|end|>"
    for pieces in cuttings(text, 1):
        assert find(pieces).reasoning == "The user asks.\n\nThe user asks."


def test_a_call_is_content_where_no_tools_are() -> None:
    assert find([f"{CALL}{WEATHER}<|call|>"], calls=False).content == WEATHER
