"""Reasoning between markers, alone and in front of calls; and what no cutting of the text may change."""

import pytest
from parsing import Found, cuttings, parse
from written_answers import TOOLS, WEATHER, hermes

from pillion.actors.detokenizer.answer_formats import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    ReasoningFormat,
)
from pillion.actors.detokenizer.answer_plan import AnswerPlan
from pillion.actors.detokenizer.parsed_output import OutputParser, ParsedOutput
from pillion.actors.detokenizer.tool_use import ToolUse


def find(
    pieces: list[str],
    form: ReasoningFormat = REASONING_FORMATS["qwen3"],
    reasoning_open: bool | None = None,
    tools: ToolUse = TOOLS,
) -> Found:
    plan = AnswerPlan(TOOL_FORMATS["hermes"], form, tools, reasoning_open)

    def make(output: ParsedOutput) -> OutputParser:
        return plan.parser(output)

    return parse(make, pieces)


@pytest.mark.parametrize(
    ("text", "is_open", "reasoning", "content"),
    [
        ("<think>\nSo.\n\nYes.\n</think>\n\nIt is 4.\n", None, "So.\n\nYes.", "It is 4.\n"),
        ("So.\n</think>\n\nIt is 4.", True, "So.", "It is 4."),
        ("<think>So.</think>It", True, "So.", "It"),
        ("It is <think> 4.", False, "", "It is <think> 4."),
        ("  It is <think> 4.", None, "", "  It is <think> 4."),
        ("<think>\n\n</think>\n\nAnswer", None, "", "Answer"),
        ("<think>never ends \n", None, "never ends", ""),
        ("<think", None, "", "<think"),
        ("<think>a</thin", None, "a</thin", ""),
        ("<think>a</think>b</think>c", None, "a", "b</think>c"),
        ("", None, "", ""),
    ],
)
def test_reasoning_comes_apart(
    text: str, is_open: bool | None, reasoning: str, content: str
) -> None:
    for pieces in cuttings(text):
        found = find(pieces, reasoning_open=is_open)
        assert (found.reasoning, found.content) == (reasoning, content), pieces


def test_calls_behind_reasoning() -> None:
    text = f"<think>{hermes('run', '{}')}?</think>\nYes.\n{hermes('get_weather', WEATHER)}"
    for pieces in cuttings(text, 1):
        found = find(pieces)
        assert found.reasoning == f"{hermes('run', '{}')}?"
        assert found.content == "Yes."
        assert found.calls == [("get_weather", WEATHER)]


@pytest.mark.parametrize(("is_open", "reasoning"), [(None, "So."), (True, "So."), (False, "")])
def test_deepseek_r1_begins_with_reasoning_unless_the_prompt_ends_it(
    is_open: bool | None, reasoning: str
) -> None:
    found = find(["So.</think>Yes."], REASONING_FORMATS["deepseek_r1"], is_open)
    assert found.reasoning == reasoning
    assert found.content == ("Yes." if reasoning else "So.</think>Yes.")


def test_markers_of_the_users_own() -> None:
    form = ReasoningFormat("markers", "<|begin|>", "<|end|>")
    for pieces in cuttings("<|begin|>a<|end|>b"):
        found = find(pieces, form)
        assert (found.reasoning, found.content) == ("a", "b")


def test_a_forced_call_comes_behind_the_reasoning() -> None:
    text = f'<think>So.</think>[{{"name": "get_weather", "arguments": {WEATHER}}}]'
    for pieces in cuttings(text, 1):
        found = find(pieces, tools=ToolUse("required", TOOLS.functions))
        assert (found.reasoning, found.content) == ("So.", "")
        assert found.calls == [("get_weather", WEATHER)]


def test_the_arguments_of_a_named_function_are_the_answer() -> None:
    for pieces in cuttings(f"<think>So.</think> {WEATHER}"):
        found = find(pieces, tools=ToolUse("named", ({"name": "get_weather"},)))
        assert (found.content, found.calls) == ("", [("get_weather", WEATHER)])
        assert found.complete


def test_what_follows_the_only_call_that_is_wanted_is_dropped() -> None:
    text = f"{hermes('now', '{}')}{hermes('run', '{}')} more"

    def make(output: ParsedOutput) -> OutputParser:
        return TOOL_FORMATS["hermes"].parser(output, TOOLS)

    for pieces in cuttings(text, 1):
        found = parse(make, pieces, max_calls=1)
        assert (found.content, found.calls) == ("", [("now", "{}")])
