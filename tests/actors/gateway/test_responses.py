"""POST /v1/responses: shapes, events, what the daemon is asked, and what goes wrong."""

import asyncio
import json
from typing import Any

import pytest
from gateway_rig import GatewayRig
from http_client import Answer
from msgspec.structs import replace

from pillion.messages.sampling import SamplingParams
from pillion.messages.structured_outputs import StructuredOutputsParams

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}


async def send(rig: GatewayRig, content: Any = "two words", **fields: Any) -> Answer:
    return await rig.post("/v1/responses", {"input": content, **fields})


def events(answer: Answer) -> list[dict[str, Any]]:
    found = []
    for event in answer.body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        parsed = json.loads(data.removeprefix("data: "))
        assert parsed["type"] == name.removeprefix("event: ")
        found.append(parsed)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert len({item["id"] for item in items}) == len(items)
    return [{key: value for key, value in item.items() if key != "id"} for item in items]


def text_item(text: str, status: str = "completed") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "role": "assistant", "status": status, "content": [part]}


def call_item(call_id: str, name: str, arguments: str, status: str = "completed") -> dict[str, Any]:
    fields = {"call_id": call_id, "name": name, "arguments": arguments, "status": status}
    return {"type": "function_call", **fields}


REASONING = {
    "type": "reasoning",
    "status": "completed",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Let me."}],
}


async def test_a_whole_answer_has_openais_shape(rig: GatewayRig) -> None:
    fields = {"instructions": "be brief", "metadata": {"a": "b"}, "store": True, "temperature": 0}
    answer = await send(rig, **fields)
    reply = answer.json
    assert answer.status == 200
    assert "x-pillion-warning" not in answer.headers
    assert reply.pop("id").startswith("resp")
    assert reply.pop("created_at") > 1_700_000_000
    assert without_ids(reply.pop("output")) == [text_item("two words ")]
    assert reply == {
        "object": "response",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "fake",
        "usage": {
            "input_tokens": 3,
            "input_tokens_details": {"cached_tokens": 2},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 5,
        },
        "instructions": "be brief",
        "max_output_tokens": None,
        "temperature": 0.0,
        "top_p": 1.0,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": None, "summary": None},
        "text": {"format": {"type": "text"}},
        "metadata": {"a": "b"},
        "truncation": "disabled",
        "store": False,
        "background": False,
        "previous_response_id": None,
    }


async def test_reasoning_text_and_calls_are_items(rig: GatewayRig) -> None:
    reply = (await send(rig, "THINK")).json
    assert without_ids(reply["output"]) == [
        REASONING,
        text_item("I look."),
        call_item("call_1", "f", '{"a": 1}'),
        call_item("call_2", "g", "{}"),
    ]


async def test_what_was_cut_off_is_incomplete(rig: GatewayRig) -> None:
    reply = (await send(rig, "THINK", max_output_tokens=7)).json
    assert reply["status"] == "incomplete"
    assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
    assert without_ids(reply["output"])[-1] == call_item("call_1", "f", '{"a": ', "incomplete")


async def test_a_stream_tells_of_each_item(rig: GatewayRig) -> None:
    answer = await send(rig, "THINK", stream=True)
    found = events(answer)
    kinds = [event["type"].removeprefix("response.") for event in found]
    text = ["output_item.added", "content_part.added"], ["content_part.done", "output_item.done"]
    arguments = "function_call_arguments"
    assert kinds == [
        "created",
        "in_progress",
        *text[0],
        *["reasoning_text.delta"] * 2,
        "reasoning_text.done",
        *text[1],
        *text[0],
        *["output_text.delta"] * 2,
        "output_text.done",
        *text[1],
        *["output_item.added", *[f"{arguments}.delta"] * 2, f"{arguments}.done", "output_item.done"]
        * 2,
        "completed",
    ]
    response = found[-1]["response"]
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert response["output"] == done
    assert without_ids(done) == without_ids((await send(rig, "THINK")).json["output"])
    for event in found:
        if "item_id" in event:
            assert event["item_id"] == done[event["output_index"]]["id"]
    assert response["usage"]["output_tokens"] == 11
    assert found[0]["response"]["output"] == []


async def test_a_conversation_reaches_the_daemon_as_a_chat(rig: GatewayRig) -> None:
    items = [
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {
            "type": "reasoning",
            "id": "r",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "o"},
    ]
    answer = await send(
        rig,
        items,
        instructions="i",
        tools=[TOOL],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        reasoning={"effort": "low", "summary": "auto"},
        max_output_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_logprobs=2,
        user="me",
    )
    assert answer.headers["x-pillion-warning"] == "ignored fields: reasoning.summary, user"
    (request,) = rig.edge.requests
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert request.messages == [
        {"role": "system", "content": "i"},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a", "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "o"},
    ]
    function = {"name": "f", "parameters": {"type": "object"}}
    assert request.tools == [{"type": "function", "function": {**function, "strict": True}}]
    assert request.tool_choice == {"type": "function", "function": {"name": "f"}}
    assert not request.parallel_tool_calls
    assert request.chat_template_kwargs == {"reasoning_effort": "low"}
    expected = SamplingParams(max_tokens=5, temperature=0.5, top_p=0.9, logprobs=2)
    assert request.sampling_params is not None
    assert replace(request.sampling_params, seed=None) == expected


async def test_a_schema_reaches_the_daemon(rig: GatewayRig) -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    reply = (await send(rig, text={"format": form})).json
    assert reply["text"] == {"format": form}
    params = rig.edge.requests[0].sampling_params
    assert params is not None
    assert params.structured_outputs == StructuredOutputsParams(json='{"type":"object"}')


async def test_log_probabilities_come_if_asked(rig: GatewayRig) -> None:
    reply = (await send(rig, "word", top_logprobs=1)).json
    (part,) = reply["output"][0]["content"]
    assert [entry["token"] for entry in part["logprobs"]] == ["word"]
    found = events(await send(rig, "word", top_logprobs=1, stream=True))
    deltas = [event for event in found if event["type"] == "response.output_text.delta"]
    assert deltas[0]["logprobs"] == part["logprobs"]


WRONG: list[tuple[str, Any]] = [
    ("input", None),
    ("input", []),
    ("input", [{"type": "item_reference", "id": "x"}]),
    ("input", [{"type": "message"}]),
    ("input", [{"role": "user", "content": [{"type": "input_image"}]}]),
    ("input", [{"role": "user", "content": 7}]),
    ("input", [{"type": "function_call", "name": "f"}]),
    ("previous_response_id", "resp_1"),
    ("conversation", "c"),
    ("prompt", {"id": "p"}),
    ("background", True),
    ("truncation", "auto"),
    ("tools", [{"type": "web_search"}]),
    ("text", {"format": {"type": "xml"}}),
    ("text", {"format": {"type": "json_schema"}}),
    ("max_output_tokens", 0),
    ("top_logprobs", 65),
    ("temperature", "hot"),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
async def test_what_is_wrong_is_told_with_its_field(
    rig: GatewayRig, field: str, value: Any
) -> None:
    answer = await send(
        rig, **{"content": "a", field: value} if field != "input" else {"content": value}
    )
    assert answer.status == 400
    assert answer.error["param"] == field
    assert field in answer.error["message"]
    assert rig.edge.requests == []


@pytest.mark.parametrize(
    ("text", "status", "param"),
    [("REFUSE", 400, "input"), ("FULL 1", 429, None), ("HANGUP", 503, None), ("BREAK", 500, None)],
)
async def test_the_daemons_errors_get_their_status(
    rig: GatewayRig, text: str, status: int, param: str | None
) -> None:
    for stream in (False, True):
        rig.edge.num_refused = 0
        answer = await send(rig, text, stream=stream)
        assert (answer.status, answer.error["param"]) == (status, param)


async def test_a_stream_that_has_begun_tells_of_its_failure(rig: GatewayRig) -> None:
    client = await rig.client()
    client.send("POST", "/v1/responses", b'{"input": "NEVER", "stream": true}')
    assert (await client.receive_head())[0] == 200
    await client.receive_chunk()
    await asyncio.to_thread(rig.edge.stop)
    rest = b""
    while part := await client.receive_chunk():
        rest += part
    last = json.loads(rest.decode().strip().split("\n")[-1].removeprefix("data: "))
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "unavailable"
    assert without_ids(last["response"]["output"]) == [text_item("so far", "incomplete")]
