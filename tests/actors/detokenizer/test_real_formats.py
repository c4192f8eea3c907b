"""Real templates show their formats, and real vocabularies cut the texts as real models do."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import written_answers
from parsing import Found, parse
from real_tokenizers import real_model
from written_answers import CALLS, NESTED, WEATHER, Written, hermes

from pillion.actors.detokenizer.answer_formats import REASONING_FORMATS, TOOL_FORMATS
from pillion.actors.detokenizer.answer_plan import AnswerPlan
from pillion.actors.detokenizer.parsed_output import OutputParser, ParsedOutput
from pillion.actors.detokenizer.prompt_jobs import prepare_prompt
from pillion.actors.detokenizer.text_model import TextModel
from pillion.actors.detokenizer.tool_use import ToolUse
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import GenerateRequest

pytestmark = pytest.mark.model

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": function} for function in written_answers.TOOLS.functions
]
USER = {"role": "user", "content": "What is the weather in Paris?"}
HISTORY: list[dict[str, Any]] = [
    USER,
    {
        "role": "assistant",
        "content": None,
        "reasoning": "I have to look.",
        "tool_calls": [
            {
                "id": "123456789",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Paris", "ü": 1}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "123456789", "content": "Rain."},
]


@pytest.fixture(scope="module")
def qwen3() -> TextModel:
    return real_model("qwen3")


@pytest.fixture(scope="module")
def deepseek() -> TextModel:
    return real_model("deepseek_v3")


def plan_of(model: TextModel, **fields: Any) -> tuple[str, AnswerPlan]:
    """The prompt of a chat as the model gets it, and how its answer is read."""
    request = GenerateRequest(
        client_request_id="r",
        **{"messages": [USER], "parse_output": True, "tools": TOOLS, **fields},
    )
    prepared = prepare_prompt(model, request, SamplingParams(), 100_000)
    assert prepared.answer is not None
    return model.tokenizer.decode(prepared.token_ids, False), prepared.answer


def read(model: TextModel, plan: AnswerPlan, text: str) -> Found:
    """What comes of a text whose tokens are the model's own."""
    stream = model.tokenizer.stream(True, shown=plan.markers)

    def pieces() -> Iterator[str]:
        for token_id in model.tokenizer.encode(text, add_special_tokens=False):
            yield stream.push(token_id)
        yield stream.flush()

    def make(output: ParsedOutput) -> OutputParser:
        return plan.parser(output)

    return parse(make, list(pieces()))


def test_qwen3_is_recognised(qwen3: TextModel) -> None:
    assert qwen3.tool_format is TOOL_FORMATS["hermes"]
    assert qwen3.reasoning_format is REASONING_FORMATS["qwen3"]


def test_deepseek_is_recognised(deepseek: TextModel) -> None:
    assert deepseek.tool_format is TOOL_FORMATS["deepseek"]
    assert deepseek.reasoning_format is None


def test_qwen3_thinks_and_calls(qwen3: TextModel) -> None:
    prompt, plan = plan_of(qwen3)
    assert '{"type": "function", "function": {"name": "run"' in prompt
    text = f"<think>\nHm.\n</think>\n\nI look.\n{hermes('get_weather', WEATHER)}\n{hermes('run', NESTED)}"
    found = read(qwen3, plan, text)
    assert (found.reasoning, found.content) == ("Hm.", "I look.")
    assert found.calls == [("get_weather", WEATHER), ("run", NESTED)]


def test_qwen3_does_not_think_where_the_prompt_says_so(qwen3: TextModel) -> None:
    prompt, plan = plan_of(qwen3, chat_template_kwargs={"enable_thinking": False})
    assert prompt.endswith("<think>\n\n</think>\n\n")
    found = read(qwen3, plan, "A <think> is a marker.")
    assert (found.reasoning, found.content) == ("", "A <think> is a marker.")


def test_qwen3_gets_earlier_calls_and_reasoning_as_it_wrote_them(qwen3: TextModel) -> None:
    prompt, _ = plan_of(qwen3, messages=HISTORY)
    assert "<think>\nI have to look.\n</think>" in prompt
    assert hermes("get_weather", '{"city": "Paris", "ü": 1}') in prompt
    assert "<tool_response>\nRain.\n</tool_response>" in prompt


def test_deepseek_gets_earlier_calls_as_it_wrote_them(deepseek: TextModel) -> None:
    prompt, _ = plan_of(deepseek, messages=HISTORY)
    assert 'get_weather\n```json\n{"city": "Paris", "ü": 1}\n```' in prompt
    assert "Rain." in prompt


@pytest.mark.parametrize(
    "form", ["hermes", "qwen3_coder", "llama3_json", "mistral", "pythonic", "json"]
)
def test_written_answers_in_real_tokens(qwen3: TextModel, form: str) -> None:
    _check(replace(qwen3, tool_format=TOOL_FORMATS[form], reasoning_format=None), form)


def test_written_answers_in_tokens_of_deepseek(deepseek: TextModel) -> None:
    _check(deepseek, "deepseek")


def _check(model: TextModel, form: str) -> None:
    _, plan = plan_of(model)
    written = [each for each in CALLS if each.form == form]
    assert written
    for each in written:
        _check_one(model, plan, each)


def _check_one(model: TextModel, plan: AnswerPlan, written: Written) -> None:
    found = read(model, plan, written.text)
    assert (found.content, found.calls) == (written.content, written.calls), written.text


def test_gpt_oss_in_its_own_tokens() -> None:
    model = real_model("gptoss")
    plan = AnswerPlan(
        TOOL_FORMATS["gpt_oss"], REASONING_FORMATS["gpt_oss"], ToolUse("auto", ({"name": "run"},))
    )
    text = (
        "<|channel|>analysis<|message|>Hm. ü<|end|><|start|>assistant<|channel|>commentary"
        f" to=functions.run <|constrain|>json<|message|>{NESTED}<|call|>"
    )
    found = read(model, plan, text)
    assert (found.reasoning, found.content, found.calls) == ("Hm. ü", "", [("run", NESTED)])
