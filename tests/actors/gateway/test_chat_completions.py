"""POST /v1/chat/completions: shapes, what the daemon is asked, and what goes wrong."""

import asyncio
from typing import Any

import pytest
from gateway_rig import GatewayRig
from msgspec.structs import replace

from pillion.messages.sampling import SamplingParams


async def test_a_whole_answer_has_openais_shape(rig: GatewayRig) -> None:
    answer = await rig.chat("two words")
    reply = answer.json
    assert answer.status == 200
    assert reply.pop("id").startswith("chatcmpl-")
    assert reply.pop("created") > 1_700_000_000
    assert reply == {
        "object": "chat.completion",
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "two words ", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }


async def test_a_stream_names_the_role_once_and_ends_with_done(rig: GatewayRig) -> None:
    answer = await rig.chat("two words", stream=True)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, done = answer.events
    assert done == "[DONE]"
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": "two "},
        {"content": "words "},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("every", [False, True])
async def test_a_stream_tells_its_usage_if_asked(rig: GatewayRig, every: bool) -> None:
    options = {"include_usage": True, "continuous_usage_stats": every}
    *chunks, last, _ = (await rig.chat("two words", stream=True, stream_options=options)).events
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    so_far = [chunk["usage"] and chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert so_far == ([1, 2] if every else [None, None])
    if every:
        assert [chunk["usage"]["prompt_tokens"] for chunk in chunks] == [3, 3]
        assert all("prompt_token_ids" not in chunk for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
async def test_samples_keep_their_indexes(rig: GatewayRig, stream: bool) -> None:
    answer = await rig.chat("two words", n=3, stream=stream)
    if not stream:
        assert [choice["index"] for choice in answer.json["choices"]] == [0, 1, 2]
        return
    texts = ["", "", ""]
    roles = []
    for chunk in answer.events[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        roles += [choice["index"]] if "role" in choice["delta"] else []
    assert texts == ["two words "] * 3
    assert roles == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_have_openais_shape(rig: GatewayRig, stream: bool) -> None:
    answer = await rig.chat("word", logprobs=True, top_logprobs=1, stream=stream)
    whole = answer.events[0] if stream else answer.json
    assert whole["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "word",
                "logprob": -1.5,
                "bytes": list(b"word"),
                "top_logprobs": [{"token": "zero", "logprob": -0.5, "bytes": list(b"zero")}],
            }
        ],
        "refusal": None,
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_come_if_asked(rig: GatewayRig, stream: bool) -> None:
    answer = await rig.chat("word", return_token_ids=True, stream=stream)
    whole = answer.events[0] if stream else answer.json
    assert whole["prompt_token_ids"] == [7, 8, 9]
    assert whole["choices"][0]["token_ids"] == [4]


async def test_a_chat_without_limits_goes_to_the_end_of_the_context(rig: GatewayRig) -> None:
    await rig.chat("word")
    (request,) = rig.edge.requests
    assert request.sampling_params is not None
    assert replace(request.sampling_params, seed=None) == SamplingParams(max_tokens=None)
    assert request.messages == [{"role": "user", "content": "word"}]
    assert request.add_generation_prompt
    assert not request.continue_final_message
    assert not request.stream


SAMPLING: dict[str, Any] = {
    "n": 2,
    "min_tokens": 1,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 3,
    "stop": ["a", "b"],
    "stop_token_ids": [4],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "presence_penalty": 1.0,
    "frequency_penalty": -1.0,
    "repetition_penalty": 1.5,
    "logit_bias": {"5": 2.0},
    "allowed_token_ids": [5, 6],
    "bad_words": ["c"],
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "truncate_prompt_tokens": 7,
    "prompt_logprobs": 2,
}


async def test_every_sampling_field_reaches_the_daemon(rig: GatewayRig) -> None:
    answer = await rig.chat("word", **SAMPLING, max_completion_tokens=8, max_tokens=9)
    assert answer.status == 200
    (request,) = rig.edge.requests
    expected = SAMPLING | {"logit_bias": {5: 2.0}, "max_tokens": 8}
    assert request.sampling_params == SamplingParams(**expected)


async def test_every_other_field_reaches_the_daemon(rig: GatewayRig) -> None:
    await rig.chat(
        "word",
        priority=-3,
        cache_salt="s",
        continue_final_message=True,
        add_generation_prompt=False,
        chat_template="{{ messages }}",
        chat_template_kwargs={"enable_thinking": False},
    )
    (request,) = rig.edge.requests
    assert (request.priority, request.cache_salt) == (-3, "s")
    assert request.continue_final_message
    assert not request.add_generation_prompt
    assert request.chat_template == "{{ messages }}"
    assert request.chat_template_kwargs == {"enable_thinking": False}


async def test_nulls_are_as_if_left_out(rig: GatewayRig) -> None:
    nulls = dict.fromkeys([*SAMPLING, "tools", "response_format", "logprobs", "best_of", "what"])
    answer = await rig.chat("word", **nulls)
    assert answer.status == 200
    assert "x-pillion-warning" not in answer.headers
    params = rig.edge.requests[0].sampling_params
    assert params is not None
    assert replace(params, seed=None) == SamplingParams(max_tokens=None)


async def test_unknown_fields_are_named_in_a_header(rig: GatewayRig) -> None:
    for stream in (False, True):
        answer = await rig.chat("word", user="me", **{"a\r\nb: c": 1}, stream=stream)
        assert answer.status == 200
        assert answer.headers["x-pillion-warning"] == "ignored fields: user, a??b??c"
    inside = await rig.chat(
        "word", stream_options={"include_usage": True, "obfuscate": 1, "x": None}
    )
    assert inside.headers["x-pillion-warning"] == "ignored fields: stream_options.obfuscate"


REFUSED: list[tuple[str, Any]] = [
    ("functions", [{"name": "f"}]),
    ("function_call", {"name": "f"}),
    ("best_of", 4),
    ("audio", {"voice": "a"}),
    ("modalities", ["text", "audio"]),
]


@pytest.mark.parametrize(("field", "value"), REFUSED)
async def test_what_is_not_offered_is_refused_by_name(
    rig: GatewayRig, field: str, value: Any
) -> None:
    answer = await rig.chat("word", **{field: value})
    assert answer.status == 400
    assert (answer.error["param"], answer.error["code"]) == (field, "unsupported")
    assert answer.error["message"].startswith(field)
    assert answer.error["type"] == "invalid_request_error"


THOUGHT = {
    "role": "assistant",
    "content": "I look.",
    "refusal": None,
    "reasoning": "Let me.",
    "reasoning_content": "Let me.",
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ],
}


async def test_reasoning_and_calls_have_places_of_their_own(rig: GatewayRig) -> None:
    (choice,) = (await rig.chat("THINK")).json["choices"]
    assert choice["message"] == THOUGHT
    assert choice["finish_reason"] == "tool_calls"


async def test_calls_without_text_have_a_null_as_content(rig: GatewayRig) -> None:
    (choice,) = (await rig.chat("THINK", max_tokens=2)).json["choices"]
    assert (choice["message"]["content"], choice["message"]["reasoning"]) == ("", "Let me.")
    assert "tool_calls" not in choice["message"]


async def test_a_stream_brings_reasoning_and_calls_in_parts(rig: GatewayRig) -> None:
    *chunks, done = (await rig.chat("THINK", stream=True)).events
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {
        "role": "assistant",
        "content": "",
        "reasoning": "Let ",
        "reasoning_content": "Let ",
    }
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls[0] == {
        "index": 0,
        "id": "call_1",
        "type": "function",
        "function": {"name": "f", "arguments": ""},
    }
    assert calls[1] == {"index": 0, "function": {"arguments": '{"a": '}}
    assert [call["index"] for call in calls] == [0, 0, 0, 1, 1]
    assert deltas[-1] == {}
    assert {} not in deltas[:-1], "events that bring nothing are left out"
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_streamed_and_whole_answers_end_alike_wherever_they_are_cut(rig: GatewayRig) -> None:
    for max_tokens in range(1, 12):
        whole = (await rig.chat("THINK", max_tokens=max_tokens)).json["choices"][0]
        *chunks, _ = (await rig.chat("THINK", max_tokens=max_tokens, stream=True)).events
        assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
        assert whole["finish_reason"] == ("length" if max_tokens < 11 else "tool_calls")


async def test_what_is_said_of_tools_reaches_the_daemon(rig: GatewayRig) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    choice = {"type": "function", "function": {"name": "f"}}
    await rig.chat("a", tools=tools, tool_choice=choice, parallel_tool_calls=False)
    await rig.chat("a", tools=[], reasoning_effort="none")
    first, second = rig.edge.requests
    assert (first.tools, first.tool_choice, first.parallel_tool_calls) == (tools, choice, False)
    assert (second.tools, second.tool_choice, second.parallel_tool_calls) == (None, None, True)
    assert first.parse_output
    assert second.chat_template_kwargs == {
        "reasoning_effort": "none",
        "enable_thinking": False,
        "thinking": False,
    }


WRONG: list[tuple[str, Any]] = [
    ("temperature", "hot"),
    ("temperature", 101),
    ("top_p", -1),
    ("n", 0),
    ("n", 129),
    ("seed", "100"),
    ("seed", 10**20),
    ("stop", [""]),
    ("stop", {"a": 1}),
    ("logit_bias", {"abc": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"2147483648": 1}),
    ("logit_bias", {"1" * 400: 1}),
    ("logit_bias", {"5": 101}),
    ("max_tokens", 0),
    ("max_tokens", 1.5),
    ("max_completion_tokens", 0),
    ("top_logprobs", 1),
    ("allowed_token_ids", []),
    ("bad_words", [5]),
    ("repetition_penalty", 0),
    ("prompt_logprobs", 65),
    ("stream_options", {"include_usage": "yes"}),
    ("messages", None),
    ("messages", "hello"),
    ("messages", [1]),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
async def test_what_is_wrong_is_told_with_its_field(
    rig: GatewayRig, field: str, value: Any
) -> None:
    answer = await rig.chat("word", **{field: value})
    assert answer.status == 400
    assert answer.error["param"] == field
    assert field in answer.error["message"]
    assert rig.edge.requests == []


async def test_logprobs_beyond_the_limit_name_their_field(rig: GatewayRig) -> None:
    answer = await rig.chat("word", logprobs=True, top_logprobs=65)
    assert answer.error["param"] == "top_logprobs"
    assert answer.error["message"] == "top_logprobs must be between 0 and 64, got 65"


async def test_both_ways_to_end_a_prompt_exclude_each_other(rig: GatewayRig) -> None:
    answer = await rig.chat("a", continue_final_message=True, add_generation_prompt=True)
    assert answer.error["param"] == "continue_final_message"


async def test_another_model_is_not_found(rig: GatewayRig) -> None:
    assert (await rig.chat("word", model="fake")).status == 200
    answer = await rig.chat("word", model="gpt-4")
    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"
    assert answer.error["param"] == "model"
    assert "'fake'" in answer.error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "status", "code", "param"),
    [
        ("REFUSE", 400, "invalid_request", "messages"),
        ("FULL 1", 429, "overloaded", None),
        ("HANGUP", 503, "unavailable", None),
        ("NOISE", 503, "unavailable", None),
        ("BREAK", 500, "internal", None),
    ],
)
async def test_the_daemons_errors_get_their_status(
    rig: GatewayRig, text: str, status: int, code: str, param: str | None, stream: bool
) -> None:
    answer = await rig.chat(text, stream=stream)
    assert answer.status == status
    assert (answer.error["code"], answer.error["param"]) == (code, param)
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    assert (await rig.chat("word")).status == 200, "the gateway goes on"


async def test_a_stream_that_has_begun_tells_of_its_failure(rig: GatewayRig) -> None:
    client = await rig.client()
    body = b'{"messages": [{"role": "user", "content": "NEVER"}], "stream": true}'
    client.send("POST", "/v1/chat/completions", body)
    status, _ = await client.receive_head()
    assert status == 200
    first = await client.receive_chunk()
    assert b"so far" in first
    await asyncio.to_thread(rig.edge.stop)
    rest = b""
    while part := await client.receive_chunk():
        rest += part
    error, done, _ = rest.split(b"\n\n")
    assert b'"error"' in error
    assert b'"unavailable"' in error
    assert done == b"data: [DONE]"
    assert rig.gateway.metrics.counters["requests_failed"] == 1


BIG = 10**30


@pytest.mark.parametrize(
    ("field", "value", "range_told"),
    [
        ("priority", BIG, "between -2147483647 and 2147483647"),
        ("priority", -(10**400), "between -2147483647 and 2147483647"),
        ("seed", BIG, "between"),
        ("max_tokens", BIG, "between"),
        ("n", BIG, "between 1 and 128"),
        ("stop_token_ids", [BIG], "token ids"),
        ("messages", [{"role": "user", "content": "a", "weight": BIG}], "2**64"),
        ("chat_template_kwargs", {"depth": BIG}, "2**64"),
        (
            "tools",
            [{"type": "function", "function": {"name": "f", "parameters": {"maximum": BIG}}}],
            "2**64",
        ),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_integers_beyond_all_bounds_are_refused_by_name(
    rig: GatewayRig, field: str, value: Any, range_told: str
) -> None:
    answer = await rig.post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "word"}], field: value},
    )
    assert (answer.status, answer.error["param"]) == (400, field)
    assert range_told in answer.error["message"]
    assert rig.edge.requests == []
