"""What /metrics tells of this gateway and of what all of them have counted."""

import asyncio
import random

import msgspec
import pytest
from fake_actor import geometry
from fake_launcher import daemon_status
from gateway_rig import GatewayRig, StartRig
from metrics_reader import Page, read_page

from pillion.actors.gateway.metrics_page import metrics_page
from pillion.actors.gateway.vllm_families import HISTOGRAMS
from pillion.messages.control import ActorStats
from pillion.runtime.config import EngineConfig
from pillion.runtime.histogram import Histogram

VLLM = {"model_name": "fake", "engine": "0"}


@pytest.fixture
async def rig(start_rig: StartRig) -> GatewayRig:
    """A gateway with a launcher to ask."""
    rig = await start_rig()
    await rig.launcher.listen(rig.gateway.run_dir.control_socket)
    return rig


def outcomes(page: Page) -> dict[str, float]:
    return page.by_label("pillion_requests_total", "outcome")


async def test_outcomes_and_open_requests_add_up(rig: GatewayRig) -> None:
    await rig.chat("two words")
    await rig.complete(["a", "b"], n=2, stream=True)
    await rig.chat("REFUSE")
    await rig.chat("word", temperature="hot")
    await rig.chat("BREAK")
    client = await rig.client()
    client.send("POST", "/v1/completions", b'{"prompt": "NEVER"}')
    await rig.edge_sees("the endless request", lambda: len(rig.edge.requests) == 6)
    page = await rig.metrics()
    assert outcomes(page) == {"finished": 2, "cancelled": 0, "refused": 2, "failed": 1, "lost": 0}
    assert page.value("pillion_open_requests") == 1
    assert page.value("pillion_requests_received_total") == 6
    assert page.value("pillion_output_tokens_total") == 2 + 4 + 1
    labels = {"route": "/v1/chat/completions", "status": "400"}
    assert page.value("pillion_http_responses_total", **labels) == 2
    handler = {"handler": "/v1/chat/completions", "method": "POST"}
    assert page.value("http_requests_total", **handler, status="4xx") == 2
    assert page.value("http_request_duration_seconds_count", **handler) == 4


async def test_random_mixes_of_endings_leave_nothing_open(rig: GatewayRig) -> None:
    rng = random.Random(5)
    sent = 0

    async def one() -> None:
        kind = rng.choice(["finish", "stream", "refuse", "break", "bad", "leave", "late"])
        if kind in ("leave", "late"):
            client = await rig.client()
            client.send("POST", "/v1/completions", b'{"prompt": "NEVER", "stream": true}')
            if kind == "late":
                await client.receive_head()
            client.hang_up()
        else:
            words = {"refuse": "REFUSE", "break": "BREAK"}.get(kind, "some words")
            fields = {"temperature": "hot"} if kind == "bad" else {"stream": kind == "stream"}
            await rig.chat(words, **fields)

    for _ in range(6):
        together = rng.randrange(1, 12)
        sent += together
        await asyncio.gather(*(one() for _ in range(together)))
    page = await rig.metrics()
    async with asyncio.timeout(10):
        while page.value("pillion_open_requests"):
            page = await rig.metrics()
    received = page.value("pillion_requests_received_total")
    assert received == sum(outcomes(page).values())
    assert outcomes(page)["lost"] == 0
    # Whoever hangs up before the body is read has asked for nothing.
    assert 0 < received <= sent


async def test_all_gateways_are_in_the_sums_and_a_dead_ones_open_requests_are_lost(
    rig: GatewayRig,
) -> None:
    await rig.chat("one")
    times = Histogram([0.5, 1.0])
    times.observe(0.7)
    other = ActorStats(
        actor="gateway2",
        epoch=1,
        counters={"requests_received": 5, "requests_finished": 2, "output_tokens": 7},
        gauges={"open_requests": 3},
        tallies={"responses": {"GET /live 200": 4}},
        histograms={"GET /live": times.counts()},
    )
    rig.launcher.report(other)
    page = await rig.metrics()
    assert page.value("pillion_requests_received_total") == 6
    assert page.value("pillion_open_requests") == 3
    assert outcomes(page)["finished"] == 3
    live = {"handler": "/live", "method": "GET"}
    assert page.value("http_requests_total", **live, status="2xx") == 4
    assert page.value("http_request_duration_seconds_bucket", **live, le="1.0") == 1
    next_life = {"requests_received": 1, "requests_finished": 1, "output_tokens": 1}
    rig.launcher.report(
        ActorStats(actor="gateway2", epoch=2, counters=dict(next_life), gauges={"open_requests": 0})
    )
    after = await rig.metrics()
    assert after.value("pillion_requests_received_total") == 7
    assert outcomes(after) == {"finished": 4, "cancelled": 0, "refused": 0, "failed": 0, "lost": 3}
    assert after.value("http_requests_total", **live, status="2xx") == 4
    assert all(
        value >= page.samples[sample]
        for sample, value in after.samples.items()
        if sample[0].endswith(("_total", "_bucket", "_count", "_sum")) and sample in page.samples
    )


async def test_vllms_names_show_what_the_engine_reports(rig: GatewayRig) -> None:
    seconds = Histogram([0.1, 1.0])
    seconds.observe(0.3, 4)
    rig.launcher.report(
        ActorStats(
            actor="detokenizer",
            epoch=1,
            counters={"requests_received": 9, "requests_finished": 8},
            gauges={"open_generations": 1},
            tallies={
                "finish_reasons": {"stop": 3, "tool_calls": 2, "timeout": 1, "length": 4},
                "cache_miss_reasons": {"": 2, "cold": 5},
            },
            histograms={own: seconds.counts() for _, own in HISTOGRAMS.values()},
        )
    )
    rig.launcher.report(
        ActorStats(
            actor="scheduler",
            epoch=1,
            counters={"prompt_tokens": 10, "cached_prompt_tokens": 4, "generated_tokens": 20},
            gauges={"running": 2, "waiting": 3},
            histograms={"preemptions": seconds.counts()},
        )
    )
    blocks = {
        "free_blocks_0": 4,
        "cached_blocks_0": 2,
        "referenced_blocks_0": 2,
        "owed_blocks_0": 9,
    }
    rig.launcher.report(ActorStats(actor="kv_manager", epoch=1, counters={}, gauges=dict(blocks)))
    page = await rig.metrics()
    for name in HISTOGRAMS:
        assert page.kinds[f"vllm:{name}"] == "histogram"
        assert page.value(f"vllm:{name}_count", **VLLM) == 4, name
        assert page.value(f"vllm:{name}_bucket", **VLLM, le="1.0") == 4, name
    reasons = page.by_label("vllm:request_success_total", "finished_reason")
    assert reasons == {"stop": 5, "length": 4, "abort": 1, "error": 0}
    assert page.value("vllm:num_requests_waiting_by_reason", **VLLM, reason="capacity") == 3
    assert page.value("vllm:kv_cache_usage_perc", **VLLM) == 0.25
    assert page.value("vllm:prefix_cache_hits_total", **VLLM) == 4
    assert page.sum("vllm:prompt_tokens_by_source_total") == 10
    assert page.value("vllm:generation_tokens_total", **VLLM) == 20
    assert page.sum("vllm:cache_config_info", block_size="16") == 1
    assert page.by_label("pillion_prefix_lookups_total", "miss") == {"none": 2, "cold": 5}
    assert page.by_label("pillion_client_requests_total", "outcome")["lost"] == 0
    assert page.value("pillion_kv_blocks", state="cached") == 2


def test_what_the_memory_of_a_device_is_for() -> None:
    on_device = msgspec.structs.replace(
        geometry(1), device="cuda:0", graphs_bytes=7, workspace_bytes=11, device_bytes=1 << 30
    )
    status = msgspec.structs.replace(daemon_status([]), geometry=on_device)
    page = read_page(metrics_page(status, EngineConfig(model="fake"), "fake", True).decode())
    assert page.by_label("pillion_device_memory_bytes", "use") == {
        "weights": on_device.weights_bytes,
        "kv_cache": on_device.kv_bytes,
        "graphs": 7,
        "workspace": 11,
    }
    assert page.value("pillion_device_memory_size_bytes") == 1 << 30


async def test_a_launcher_that_does_not_answer_is_an_error_and_no_fall_of_all_counters(
    rig: GatewayRig,
) -> None:
    rig.launcher.close()
    answer = await rig.get("/metrics")
    assert answer.status == 503
    assert "the launcher does not answer" in answer.error["message"]
