"""The `openai` package, and curl, against a live daemon with a real model."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pydantic
import pytest

from .conftest import Served

pytestmark = pytest.mark.model

MODEL = "smollm2"
NUM_TOKENS = 4
MESSAGES: Any = [{"role": "user", "content": "Name three colours."}]
GREEDY: Any = {"model": MODEL, "temperature": 0, "max_tokens": NUM_TOKENS}


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.key, max_retries=0) as found:
        yield found


def test_chat_whole_and_streamed_are_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    text = whole.choices[0].message.content
    assert text
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == NUM_TOKENS
    pieces, usage, reasons = [], None, []
    for chunk in client.chat.completions.create(
        messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **GREEDY
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            reasons.append(choice.finish_reason)
    assert "".join(pieces) == text
    assert reasons[-1] == "length"
    assert usage is not None
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert usage.completion_tokens == NUM_TOKENS


async def test_chats_side_by_side(served: Served) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=served.key) as client:

        async def ask() -> str:
            stream = await client.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY)
            return "".join(
                [part.choices[0].delta.content or "" async for part in stream if part.choices]
            )

        texts = await asyncio.gather(*[ask() for _ in range(2)])
    assert len(set(texts)) == 1
    assert texts[0]


def test_over_a_unix_socket(served: Served, client: openai.OpenAI) -> None:
    asked: Any = {"prompt": "1, 2, 3,", **GREEDY}
    client.completions.create(**asked)  # from now on the prompt is cached, and so alike
    transport = httpx2.HTTPTransport(uds=str(served.socket))
    with openai.OpenAI(
        base_url="http://pillion/v1",
        api_key=served.key,
        http_client=openai.DefaultHttpxClient(transport=transport),
    ) as local:
        whole = local.completions.create(**asked).choices[0].text
        pieces = [part.choices[0].text for part in local.completions.create(stream=True, **asked)]
    assert whole == client.completions.create(**asked).choices[0].text == "".join(pieces)


def test_chat_logprobs(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        messages=MESSAGES, logprobs=True, top_logprobs=3, n=2, **GREEDY
    )
    for choice in whole.choices:
        assert choice.logprobs is not None
        entries = choice.logprobs.content or []
        assert len(entries) == NUM_TOKENS
        for entry in entries:
            # Greedy: the likeliest token is the one that was taken.
            assert entry.top_logprobs[0].token == entry.token
            assert len(entry.top_logprobs) == 3
            assert entry.logprob <= 0
        assert "".join(entry.token for entry in entries) == choice.message.content


def test_echo_with_logprobs_as_evaluation_tools_ask_for_it(client: openai.OpenAI) -> None:
    prompt = "The sky is blue"
    text = client.completions.create(
        prompt=prompt, model=MODEL, max_tokens=1, temperature=0, echo=True, logprobs=1
    ).choices[0]
    ids: Any = _tokens(client, prompt)
    tokens = client.completions.create(
        prompt=[ids], model=MODEL, max_tokens=1, temperature=0, echo=True, logprobs=1
    ).choices[0]
    assert text.text.startswith(prompt)
    assert tokens.text == text.text
    logprobs = text.logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert len(logprobs.tokens or []) == len(ids) + 1
    assert "".join(logprobs.tokens or []) == text.text
    assert logprobs.token_logprobs[0] is None
    assert all(value is not None and value <= 0 for value in logprobs.token_logprobs[1:])
    assert logprobs.text_offset == [
        sum(map(len, (logprobs.tokens or [])[:place])) for place in range(len(ids) + 1)
    ]
    assert tokens.logprobs is not None
    assert tokens.logprobs.token_logprobs is not None
    assert tokens.logprobs.token_logprobs[1:] == pytest.approx(
        logprobs.token_logprobs[1:], abs=1e-3
    )


def test_several_prompts_and_a_seed(client: openai.OpenAI) -> None:
    def ask() -> list[str]:
        answer = client.completions.create(
            prompt=["Once", "Two"], model=MODEL, max_tokens=2, seed=5, n=2
        )
        return [choice.text for choice in answer.choices]

    assert len(ask()) == 4
    assert ask() == ask()


def test_stop_and_raw_response(client: openai.OpenAI) -> None:
    whole = client.completions.create(prompt="1, 2, 3,", **GREEDY).choices[0].text
    stop = whole.strip()[0]
    raw = client.completions.with_raw_response.create(
        prompt="1, 2, 3,", stop=stop, extra_body={"what": 1}, **GREEDY
    )
    assert raw.headers["x-pillion-warning"] == "ignored fields: what"
    choice = raw.parse().choices[0]
    assert choice.finish_reason == "stop"
    assert choice.text == whole[: whole.index(stop)]


def test_prompt_logprobs_and_token_ids(client: openai.OpenAI) -> None:
    extra = {"prompt_logprobs": 1, "return_token_ids": True}
    whole = client.chat.completions.create(messages=MESSAGES, extra_body=extra, **GREEDY)
    found = json.loads(whole.model_dump_json())
    ids, entries = found["prompt_token_ids"], found["prompt_logprobs"]
    assert len(ids) == len(entries) == found["usage"]["prompt_tokens"]
    assert entries[0] is None
    assert all(str(token_id) in entry for token_id, entry in zip(ids[1:], entries[1:], strict=True))
    assert len(found["choices"][0]["token_ids"]) == NUM_TOKENS


def test_models_and_errors(client: openai.OpenAI, served: Served) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        client.chat.completions.create(messages=MESSAGES, model="gpt-4")
    with pytest.raises(openai.BadRequestError, match="no embeddings") as refused:
        client.embeddings.create(input="a", model=MODEL)
    assert refused.value.code == "unsupported"
    with pytest.raises(openai.BadRequestError, match="max_model_len") as too_long:
        client.completions.create(prompt="word " * 2000, model=MODEL)
    assert (too_long.value.param, too_long.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(openai.BadRequestError, match="token ids from 0 to") as beyond:
        client.completions.create(prompt="a", model=MODEL, logit_bias={"999999": 1})
    assert beyond.value.param == "logit_bias"
    with pytest.raises(openai.BadRequestError, match="allow_request_templates"):
        client.chat.completions.create(
            messages=MESSAGES, model=MODEL, extra_body={"chat_template": "x"}
        )
    with (
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong") as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_responses_whole_and_streamed_are_the_same(client: openai.OpenAI) -> None:
    fields: Any = {
        "model": MODEL,
        "input": "Name three colours.",
        "instructions": "Be brief.",
        "temperature": 0,
        "max_output_tokens": NUM_TOKENS,
    }
    whole = client.responses.create(**fields)
    assert whole.output_text
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage is not None
    assert whole.usage.output_tokens == NUM_TOKENS
    with client.responses.stream(**fields) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(pieces) == whole.output_text
    raw = list(client.responses.create(stream=True, **fields))
    assert raw[-1].type == "response.incomplete"
    assert raw[-1].response.output_text == whole.output_text
    with pytest.raises(openai.BadRequestError, match="keeps no responses"):
        client.responses.create(previous_response_id=whole.id, **fields)


def test_a_conversation_with_tools(client: openai.OpenAI) -> None:
    function: Any = {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    messages: Any = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Rain."},
    ]
    tools: Any = [{"type": "function", "function": function}]
    whole = client.chat.completions.create(messages=messages, tools=tools, **GREEDY)
    assert whole.choices[0].finish_reason == "length"
    items: Any = [
        {"role": "user", "content": "Name three colours."},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "Rain."},
    ]
    response = client.responses.create(
        model=MODEL,
        input=items,
        tools=[{"type": "function", "strict": True, **function}],
        temperature=0,
        max_output_tokens=NUM_TOKENS,
    )
    assert response.output_text == whole.choices[0].message.content


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_calls_that_must_come(client: openai.OpenAI, choice: Any) -> None:
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": "get_weather", "parameters": {**city, "additionalProperties": False}}
    fields: Any = {
        **GREEDY,
        "max_tokens": 60,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": choice,
        "parallel_tool_calls": False,
    }
    client.chat.completions.create(**fields)  # from now on the prompt is cached, and so alike
    whole = client.chat.completions.create(**fields).choices[0]
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls or ()
    assert set(json.loads(call.function.arguments)) == {"city"}  # type: ignore[union-attr]
    with client.chat.completions.stream(**fields) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    (again,) = streamed.message.tool_calls or ()
    assert again.function.arguments == call.function.arguments  # type: ignore[union-attr]


def test_a_stream_that_is_left_ends_in_the_daemon(client: openai.OpenAI, served: Served) -> None:
    stream = client.completions.create(
        prompt="Once", model=MODEL, max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    # A request that waits for a place behind the one that was left would take far longer.
    assert client.completions.create(prompt="a", **GREEDY).choices[0].text


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_over_a_unix_socket(served: Served) -> None:
    def curl(path: str, *arguments: str) -> str:
        command = ["curl", "-sS", "--max-time", "60", "--unix-socket", str(served.socket)]
        command += ["-H", f"authorization: Bearer {served.key}", *arguments]
        return subprocess.run(
            [*command, f"http://pillion{path}"], check=True, capture_output=True, text=True
        ).stdout

    body = json.dumps({"messages": MESSAGES, "stream": True, **GREEDY})
    events = curl("/v1/chat/completions", "-d", body).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert curl("/ready") == "{}"
    tokens = json.loads(curl("/tokenize", "-d", '{"prompt": "Hi there"}'))["tokens"]
    back = curl("/detokenize", "-d", json.dumps({"tokens": tokens}))
    assert json.loads(back) == {"prompt": "Hi there"}
    assert json.loads(curl("/tokenizer_info"))["eos_token"] == "<|im_end|>"
    assert "vllm:request_success_total" in curl("/metrics")


def _tokens(client: openai.OpenAI, text: str) -> list[int]:
    root = str(client.base_url).removesuffix("/v1/")
    reply = client.post(f"{root}/tokenize", body={"prompt": text}, cast_to=object)
    tokens: list[int] = reply["tokens"]  # type: ignore[index]
    return tokens


class Person(pydantic.BaseModel):
    name: str
    age: int


SCHEMA_FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "colour",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "blue"]}},
            "required": ["colour"],
            "additionalProperties": False,
        },
    },
}


def test_parse_gives_what_the_model_class_says(client: openai.OpenAI) -> None:
    found = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Who are you? Be short."}],
        response_format=Person,
        temperature=0,
        max_tokens=60,
    )
    person = found.choices[0].message.parsed
    assert isinstance(person, Person)
    assert found.choices[0].finish_reason == "stop"


def test_a_strict_schema_whole_and_streamed(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": MODEL,
        "messages": MESSAGES,
        "response_format": SCHEMA_FORMAT,
        "temperature": 0,
        "max_tokens": 30,
    }
    whole = client.chat.completions.create(**asked).choices[0].message.content
    assert json.loads(whole or "")["colour"] in ("red", "blue")
    stream = client.chat.completions.create(stream=True, **asked)
    assert "".join(part.choices[0].delta.content or "" for part in stream) == whole


def test_bad_schemas_are_errors_of_the_field(client: openai.OpenAI) -> None:
    for schema in ("hello", {"type": 7}, {"$ref": "#"}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                messages=MESSAGES,
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": schema},  # type: ignore[typeddict-item]
                },
                **GREEDY,
            )
        assert caught.value.param == "response_format"


def test_a_call_that_must_come_comes(client: openai.OpenAI) -> None:
    tool: Any = {
        "type": "function",
        "function": {
            "name": "paint",
            "parameters": {
                "type": "object",
                "properties": {"colour": {"enum": ["red", "blue"]}},
                "required": ["colour"],
                "additionalProperties": False,
            },
        },
    }
    choices: list[Any] = ["required", {"type": "function", "function": {"name": "paint"}}]
    for choice in choices:
        found = client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            tools=[tool],
            tool_choice=choice,
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=60,
        )
        (call,) = found.choices[0].message.tool_calls or []
        assert call.function.name == "paint"  # type: ignore[union-attr]
        assert json.loads(call.function.arguments)["colour"] in ("red", "blue")  # type: ignore[union-attr]
