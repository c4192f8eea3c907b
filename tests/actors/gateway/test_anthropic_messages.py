"""POST /v1/messages: shapes, events, what the daemon is asked, and what goes wrong."""

import asyncio
import json
from typing import Any

import pytest
from gateway_rig import GatewayRig
from http_client import Answer
from msgspec.structs import replace

from pillion.messages.sampling import SamplingParams
from pillion.messages.structured_outputs import StructuredOutputsParams

USER = {"role": "user", "content": "two words"}
TOOL = {"name": "f", "description": "does f", "input_schema": {"type": "object"}}


async def send(rig: GatewayRig, content: Any = "two words", **fields: Any) -> Answer:
    messages = [{"role": "user", "content": content}]
    body = {"messages": messages, "max_tokens": 100, **fields}
    return await rig.post("/v1/messages", body)


def events(answer: Answer) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for event in answer.body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        parsed = json.loads(data.removeprefix("data: "))
        assert parsed["type"] == name.removeprefix("event: ")
        found.append((parsed["type"], parsed))
    return found


async def test_a_whole_answer_has_anthropics_shape(rig: GatewayRig) -> None:
    answer = await send(rig)
    assert answer.status == 200
    reply = answer.json
    assert reply.pop("id").startswith("msg")
    assert reply == {
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [{"type": "text", "text": "two words "}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 1,
            "output_tokens": 2,
            "cache_read_input_tokens": 2,
            "cache_creation_input_tokens": 0,
        },
    }


async def test_thinking_and_calls_are_blocks(rig: GatewayRig) -> None:
    reply = (await send(rig, "THINK")).json
    assert reply["content"] == [
        {"type": "thinking", "thinking": "Let me.", "signature": ""},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "call_2", "name": "g", "input": {}},
    ]
    assert reply["stop_reason"] == "tool_use"


async def test_a_stream_begins_and_ends_each_block(rig: GatewayRig) -> None:
    answer = await send(rig, "THINK", stream=True)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    found = events(answer)
    (_, start), *blocks, (_, delta), (last, _) = found
    assert start["message"]["content"] == []
    assert start["message"]["usage"]["input_tokens"] == 3
    shown = [
        (kind, data["index"], data.get("content_block", data.get("delta"))) for kind, data in blocks
    ]
    begin, more, stop = "content_block_start", "content_block_delta", "content_block_stop"
    assert shown == [
        (begin, 0, {"type": "thinking", "thinking": "", "signature": ""}),
        (more, 0, {"type": "thinking_delta", "thinking": "Let "}),
        (more, 0, {"type": "thinking_delta", "thinking": "me."}),
        (more, 0, {"type": "signature_delta", "signature": ""}),
        (stop, 0, None),
        (begin, 1, {"type": "text", "text": ""}),
        (more, 1, {"type": "text_delta", "text": "I "}),
        (more, 1, {"type": "text_delta", "text": "look."}),
        (stop, 1, None),
        (begin, 2, {"type": "tool_use", "id": "call_1", "name": "f", "input": {}}),
        (more, 2, {"type": "input_json_delta", "partial_json": '{"a": '}),
        (more, 2, {"type": "input_json_delta", "partial_json": "1}"}),
        (stop, 2, None),
        (begin, 3, {"type": "tool_use", "id": "call_2", "name": "g", "input": {}}),
        (more, 3, {"type": "input_json_delta", "partial_json": "{"}),
        (more, 3, {"type": "input_json_delta", "partial_json": "}"}),
        (stop, 3, None),
    ]
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == 11
    assert delta["usage"]["cache_read_input_tokens"] == 2
    assert last == "message_stop"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_was_cut_says_so(rig: GatewayRig, stream: bool) -> None:
    answer = await send(rig, "THINK", max_tokens=7, stream=stream)
    if stream:
        assert events(answer)[-2][1]["delta"]["stop_reason"] == "max_tokens"
    else:
        assert answer.json["stop_reason"] == "max_tokens"
        assert answer.json["content"][2]["input"] == {}


async def test_a_conversation_reaches_the_daemon_as_a_chat(rig: GatewayRig) -> None:
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "c"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"ü": 1}},
                {"type": "tool_use", "id": "t2", "name": "f", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "r"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [{"type": "text", "text": "s"}],
                },
                {"type": "text", "text": "go on"},
            ],
        },
    ]
    answer = await send(
        rig,
        messages=turns,
        system=[{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        tools=[TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        thinking={"type": "disabled"},
        output_config={"effort": "low"},
        stop_sequences=["x"],
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        metadata={"user_id": "me"},
        service_tier="auto",
    )
    assert answer.headers["x-pillion-warning"] == "ignored fields: metadata, service_tier"
    (request,) = rig.edge.requests
    call = {"type": "function", "function": {"name": "f", "arguments": '{"ü":1}'}}
    assert request.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "c",
            "reasoning": "hm",
            "tool_calls": [
                {"id": "t1", **call},
                {"id": "t2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "r"},
        {"role": "tool", "tool_call_id": "t2", "content": "s"},
        {"role": "user", "content": "go on"},
    ]
    function = {"name": "f", "description": "does f", "parameters": {"type": "object"}}
    assert request.tools == [{"type": "function", "function": function}]
    assert (request.tool_choice, request.parallel_tool_calls) == ("required", False)
    assert request.chat_template_kwargs == {
        "reasoning_effort": "low",
        "enable_thinking": False,
        "thinking": False,
    }
    assert request.sampling_params is not None
    assert replace(request.sampling_params, seed=None) == SamplingParams(
        max_tokens=100, temperature=0.5, top_p=0.9, top_k=3, stop=["x"]
    )
    assert request.add_generation_prompt


async def test_a_schema_reaches_the_daemon(rig: GatewayRig) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    await send(rig, output_config={"format": form})
    params = rig.edge.requests[0].sampling_params
    assert params is not None
    assert params.structured_outputs == StructuredOutputsParams(json='{"type":"object"}')


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
async def test_choices_of_tools(rig: GatewayRig, choice: Any, expected: Any) -> None:
    await send(rig, tools=[TOOL], tool_choice=choice)
    assert rig.edge.requests[0].tool_choice == expected


async def test_a_last_message_of_the_assistant_is_continued(rig: GatewayRig) -> None:
    await send(rig, messages=[USER, {"role": "assistant", "content": "Two"}])
    (request,) = rig.edge.requests
    assert request.continue_final_message
    assert not request.add_generation_prompt


async def test_tokens_are_counted(rig: GatewayRig) -> None:
    answer = await rig.post("/v1/messages/count_tokens", {"messages": [USER], "tools": [TOOL]})
    assert answer.json == {"input_tokens": 2}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens must be between 1"),
    ({"messages": None}, "messages"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "'image'"),
    ({"messages": [{"role": "user", "content": [7]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "content[0].text must be"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "input"),
    ({"system": [{"type": "image"}]}, "system[0]"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "runs none"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"temperature": -1}, "temperature"),
    ({"stop_sequences": [""]}, "stop_sequences takes non-empty strings"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG)
async def test_what_is_wrong_is_told(rig: GatewayRig, fields: dict[str, Any], message: str) -> None:
    answer = await send(rig, **fields)
    assert answer.status == 400
    assert answer.json["type"] == "error"
    assert answer.error["type"] == "invalid_request_error"
    assert message in answer.error["message"]
    assert rig.edge.requests == []


@pytest.mark.parametrize(
    ("text", "status", "kind"),
    [
        ("REFUSE", 400, "invalid_request_error"),
        ("FULL 1", 429, "rate_limit_error"),
        ("HANGUP", 503, "overloaded_error"),
        ("BREAK", 500, "api_error"),
    ],
)
async def test_errors_have_anthropics_shape(
    rig: GatewayRig, text: str, status: int, kind: str
) -> None:
    for stream in (False, True):
        rig.edge.num_refused = 0
        answer = await send(rig, text, stream=stream)
        assert (answer.status, answer.error["type"]) == (status, kind)
    assert (await send(rig, model="claude")).error["type"] == "not_found_error"


async def test_a_stream_that_has_begun_tells_of_its_failure(rig: GatewayRig) -> None:
    client = await rig.client()
    body = b'{"messages": [{"role": "user", "content": "NEVER"}], "max_tokens": 9, "stream": true}'
    client.send("POST", "/v1/messages", body)
    assert (await client.receive_head())[0] == 200
    await client.receive_chunk()
    await asyncio.to_thread(rig.edge.stop)
    rest = b""
    while part := await client.receive_chunk():
        rest += part
    name, data = rest.decode().strip().split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "overloaded_error"
