"""The `anthropic` package against a live daemon with a real model."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from .conftest import Served

pytestmark = pytest.mark.model

MODEL = "smollm2"
NUM_TOKENS = 4
MESSAGES: Any = [{"role": "user", "content": "Name three colours."}]
# Newer versions of the package have no argument for the temperature.
GREEDY: Any = {"model": MODEL, "max_tokens": NUM_TOKENS, "extra_body": {"temperature": 0}}
TOOL: Any = {
    "name": "get_weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture
def client(served: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key=served.key, max_retries=0) as found:
        yield found


def test_whole_and_streamed_are_the_same(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(messages=MESSAGES, system="Be brief.", **GREEDY)
    (block,) = whole.content
    assert block.type == "text"
    assert block.text
    assert whole.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == NUM_TOKENS
    with client.messages.stream(messages=MESSAGES, system="Be brief.", **GREEDY) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == block.text
    assert [each.type for each in final.content] == ["text"]
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == NUM_TOKENS
    prompt_tokens = [
        each.usage.input_tokens + (each.usage.cache_read_input_tokens or 0)
        for each in (whole, final)
    ]
    assert prompt_tokens[0] == prompt_tokens[1]


def test_stop_sequences_and_counts(client: anthropic.Anthropic) -> None:
    text = client.messages.create(messages=MESSAGES, **GREEDY).content[0].text  # type: ignore[union-attr]
    stop = text.strip()[-1]
    stopped = client.messages.create(messages=MESSAGES, stop_sequences=[stop], **GREEDY)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    alone = client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens
    with_tools = client.messages.count_tokens(model=MODEL, messages=MESSAGES, tools=[TOOL])
    usage = stopped.usage
    assert alone == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert with_tools.input_tokens > alone


def test_a_conversation_with_tools(client: anthropic.Anthropic) -> None:
    call: Any = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}}
    result: Any = {"type": "tool_result", "tool_use_id": "t1", "content": "Rain."}
    messages: Any = [
        *MESSAGES,
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(
        messages=messages, tools=[TOOL], tool_choice={"type": "auto"}, **GREEDY
    )
    assert answer.content


def test_calls_that_must_come(client: anthropic.Anthropic) -> None:
    schema = TOOL["input_schema"] | {"required": ["city"], "additionalProperties": False}
    fields: Any = {
        **GREEDY,
        "max_tokens": 60,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [TOOL | {"input_schema": schema}],
    }
    for choice in ({"type": "tool", "name": "get_weather"}, {"type": "any"}):
        fields["tool_choice"] = {**choice, "disable_parallel_tool_use": True}
        client.messages.create(**fields)  # from now on the prompt is cached, and so alike
        whole = client.messages.create(**fields)
        (block,) = whole.content
        assert block.type == "tool_use"
        assert (block.name, set(block.input)) == ("get_weather", {"city"})
        assert whole.stop_reason == "tool_use"
        with client.messages.stream(**fields) as stream:
            (streamed,) = stream.get_final_message().content
        assert streamed.type == "tool_use"
        assert (streamed.name, streamed.input) == (block.name, block.input)


def test_errors(client: anthropic.Anthropic, served: Served) -> None:
    with pytest.raises(anthropic.NotFoundError, match="claude"):
        client.messages.create(model="claude", messages=MESSAGES, max_tokens=1)
    with pytest.raises(anthropic.BadRequestError, match="the prompt is too long") as too_long:
        client.messages.create(
            model=MODEL, max_tokens=1, messages=[{"role": "user", "content": "word " * 2000}]
        )
    assert json.loads(too_long.value.response.content)["type"] == "error"
    image: Any = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": ""},
    }
    with pytest.raises(anthropic.BadRequestError, match="'image'"):
        client.messages.create(
            model=MODEL, max_tokens=1, messages=[{"role": "user", "content": [image]}]
        )
    with (
        anthropic.Anthropic(base_url=served.url, api_key="wrong") as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(messages=MESSAGES, **GREEDY)
