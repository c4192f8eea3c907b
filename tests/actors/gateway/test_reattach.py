"""HTTP clients notice nothing of a text edge that dies and comes back."""

import asyncio

from fake_text_edge import FakeTextEdge, fake_launcher
from gateway_rig import GatewayRig

from pillion.runtime.clock import now_ns

PROMPT = "one two three four five"


async def test_a_stream_goes_on_without_repeating_anything(rig: GatewayRig) -> None:
    rig.edge.hang_up_after = 2
    answer = await rig.chat(PROMPT, stream=True, n=2, stream_options={"include_usage": True})
    texts = ["", ""]
    usage = None
    for event in answer.events[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
        usage = event.get("usage") or usage
    assert texts == [PROMPT + " "] * 2
    assert usage is not None
    assert usage["completion_tokens"] == 10
    first, again = rig.edge.requests
    assert again.resume is not None
    assert [sample.num_chars for sample in again.resume.samples] == [len("one two "), 0]
    assert again.sampling_params == first.sampling_params
    assert again.sampling_params is not None
    assert again.sampling_params.seed is not None


async def test_several_prompts_go_on(rig: GatewayRig) -> None:
    rig.edge.hang_up_after = 1
    answer = await rig.complete(["a b", "c d", "e f"], max_tokens=5)
    assert [choice["text"] for choice in answer.json["choices"]] == [
        "a b ",
        "c d ",
        "e f ",
    ]


async def test_requests_wait_while_the_text_edge_is_away(rig: GatewayRig) -> None:
    with fake_launcher(rig.edge.path):
        await asyncio.to_thread(rig.edge.stop)
        waiting = asyncio.ensure_future(rig.chat("word"))
        tokens = asyncio.ensure_future(rig.post("/tokenize", {"prompt": "a b"}))
        started_ns = now_ns()
        health = await rig.get("/health")
        assert (health.status, now_ns() - started_ns < 10**9) == (503, True)
        rig.edge = await asyncio.to_thread(FakeTextEdge, rig.edge.path)
        async with asyncio.timeout(10):
            assert (await waiting).status == 200
            assert (await tokens).status == 200


async def test_nobody_waits_while_the_daemon_stops(rig: GatewayRig) -> None:
    with fake_launcher(rig.edge.path):
        await asyncio.to_thread(rig.edge.stop)
        rig.gateway.link.closed_because = "the daemon is stopping"
        async with asyncio.timeout(5):
            assert (await rig.chat("word")).status == 503
