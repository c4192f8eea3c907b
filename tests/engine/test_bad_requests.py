"""One bad request over HTTP among ten good ones: it hears what is wrong with it, and the others hear nothing of it."""

import json
import time
from typing import Any

import pytest
from http_client import Answer, HttpClient
from ring_daemon import RingDaemon, StartRing, until

pytestmark = pytest.mark.model

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
VOCAB_SIZE = 49_152
NUM_GOOD = 10
# Alone it takes less than one second; here two cores are busy with ten streams and other tests.
ANSWER_LIMIT_S = 5.0
SLOW_TEMPLATE = "{% for a in range(999) %}" * 3 + "{% endfor %}" * 3


def schema(value: Any) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": value}}
    }


def tool(parameters: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **more}}


# Path, what is beside a prompt or a message, the field that the answer names.
BAD: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, {"allowed_token_ids": list(range(VOCAB_SIZE + 1))}, "allowed_token_ids"),
    (COMPLETIONS, {"logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias"),
    (COMPLETIONS, {"stop_token_ids": list(range(20_000))}, "stop_token_ids"),
    *(
        (COMPLETIONS, {"logit_bias": {each: -100}}, "logit_bias")
        for each in (str(VOCAB_SIZE), "2147483648", "-1", "abc")
    ),
    *((COMPLETIONS, {"prompt": each}, "prompt") for each in ([-1], [VOCAB_SIZE], [2**63], [], [[]])),
    (COMPLETIONS, {"prompt": "word " * 20_000}, "prompt"),
    *(
        (COMPLETIONS, {"structured_outputs": {"regex": each}}, "structured_outputs")
        for each in ("[", "(?P<", "a?" * 500_000)
    ),
    *((CHATS, schema(each), "response_format") for each in ("hello", {"type": 7}, {"$ref": "#"})),
    *((COMPLETIONS, {"seed": each}, "seed") for each in (10**20, "100")),
    *(
        (COMPLETIONS, {name: value}, name)
        for name, value in [
            ("temperature", 999_999), ("temperature", -1), ("top_p", -1), ("top_p", 1.5), ("top_k", -5),
            ("min_p", 2), ("repetition_penalty", 0), ("presence_penalty", 99), ("n", 10_000),
            ("max_tokens", -1), ("prompt_logprobs", 10**6),
        ]
    ),
    (CHATS, {"chat_template": SLOW_TEMPLATE}, "chat_template"),
    (CHATS, {"chat_template_kwargs": {"chat_template": SLOW_TEMPLATE}}, "chat_template_kwargs"),
    (CHATS, {"messages": [{"role": "user", "content": {"a": 1}}]}, "messages"),
    *((CHATS, {"tools": [tool({"type": 7}, **more)], **choice}, "tools") for more, choice in [
        ({}, {"tool_choice": "required"}), ({"strict": True}, {}), ({"strict": 7}, {}),
    ]),
]  # fmt: skip


async def ask(daemon: RingDaemon, path: str, fields: dict[str, Any]) -> Answer:
    client = await HttpClient.connect(daemon.http)
    given: dict[str, Any] = (
        {"prompt": "word"}
        if path == COMPLETIONS
        else {"messages": [{"role": "user", "content": "word"}]}
    )
    try:
        return await client.ask("POST", path, {**given, "max_tokens": 4, **fields})
    finally:
        client.hang_up()


def counters(daemon: RingDaemon) -> dict[str, int | float]:
    return daemon.actors()["gateway"].counters


async def test_whatever_is_wrong_is_named_and_hurts_nobody(start_ring: StartRing) -> None:
    daemon = start_ring(max_num_seqs=NUM_GOOD + 2, max_model_len=16_384, step_us=2000)
    good = {"prompt": [7], "max_tokens": 16_000, "ignore_eos": True, "stream": True}
    streams = [await HttpClient.connect(daemon.http) for _ in range(NUM_GOOD)]
    for stream in streams:
        stream.send("POST", COMPLETIONS, json.dumps(good).encode())
        status, _ = await stream.receive_head()
        assert status == 200
        await stream.receive_chunk()
    for path, fields, field in BAD:
        began = time.monotonic()
        answer = await ask(daemon, path, fields)
        assert time.monotonic() - began < ANSWER_LIMIT_S, fields
        assert answer.status == 400, (fields, answer.body[:500])
        assert answer.error["param"] == field, (fields, answer.error)
    fits = await ask(daemon, COMPLETIONS, {"logit_bias": {str(VOCAB_SIZE - 1): -100}})
    assert fits.status == 200
    for stream in streams:
        while b'"finish_reason":null' not in await stream.receive_chunk():
            pass
        stream.hang_up()
    await until("nothing is left", daemon.is_at_rest)
    assert not any(actor.restarts for actor in daemon.actors().values())
    refused = len(BAD)
    await until("all are counted", lambda: counters(daemon)["requests_refused"] == refused)
    assert counters(daemon)["requests_failed"] == 0
