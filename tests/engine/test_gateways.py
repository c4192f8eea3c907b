"""Two gateways with one daemon behind them: either may die, and either tells the numbers of both."""

import asyncio
import contextlib
import os
import random
import signal
from typing import Any

import pytest
from http_client import HttpClient
from metrics_reader import Page, read_page
from ring_daemon import RingDaemon, StartRing, until

ENDLESS = {"prompt": "on and on", "max_tokens": 90_000, "ignore_eos": True, "stream": True}
GATEWAYS = ("gateway", "gateway2")
MOST_STREAMS = 64
# Who holds which blocks is told by two actors, one after the other.
REPORTED_S = 10.0


async def ask(daemon: RingDaemon, body: Any) -> int:
    """The status of a completion on a connection of its own."""
    client = await HttpClient.connect(daemon.http)
    answer = await client.ask("POST", "/v1/completions", body)
    client.hang_up()
    return answer.status


async def begin_stream(daemon: RingDaemon) -> HttpClient:
    client = await HttpClient.connect(daemon.http)
    client.send("POST", "/v1/completions", HttpClient.encode(ENDLESS))
    assert (await client.receive_head())[0] == 200
    await client.receive_chunk()
    return client


async def metrics(daemon: RingDaemon) -> Page:
    client = await HttpClient.connect(daemon.http)
    answer = await client.ask("GET", "/metrics")
    client.hang_up()
    assert answer.status == 200, answer
    return read_page(answer.body.decode())


def num_open(daemon: RingDaemon) -> dict[str, int]:
    """Generations by gateway, as they have reported."""
    actors = daemon.actors()
    return {name: int(actors[name].gauges.get("open_requests", 0)) for name in GATEWAYS}


async def all_are_reported(daemon: RingDaemon, count: int) -> None:
    await until("all are reported", lambda: sum(num_open(daemon).values()) == count)


async def read_to_end(client: HttpClient) -> None:
    """Until the stream breaks off: it has no end of its own."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while await client.receive_chunk():
            pass


def has_died(daemon: RingDaemon, actor: str) -> bool:
    return daemon.actors()[actor].restarts != {}


def check_sums(page: Page) -> None:
    """Whoever was received has ended in one of the ways, and nobody is left."""
    for name in ("pillion_requests", "pillion_client_requests"):
        outcomes = page.by_label(f"{name}_total", "outcome")
        assert page.value(f"{name}_received_total") == sum(outcomes.values()), outcomes
    for gauge in ("pillion_open_requests", "pillion_client_open_requests"):
        assert page.value(gauge) == 0
    for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
        assert page.sum(gauge) == 0
    assert page.value("pillion_kv_blocks", state="referenced") == 0


def check_growth(before: Page, after: Page) -> None:
    """No counter has shrunk, though another gateway may have answered."""
    for (name, labels), value in before.samples.items():
        if name.endswith(("_total", "_bucket", "_count")) and not name.startswith(
            "pillion_actor_cpu"
        ):
            assert after.samples[name, labels] >= value, (name, labels)


@pytest.mark.model
async def test_one_of_two_gateways_dies_under_load(start_ring: StartRing) -> None:
    daemon = start_ring(http_gateways=2, step_us=1000)
    streams = [await begin_stream(daemon)]
    while not all(num_open(daemon).values()):
        assert len(streams) < MOST_STREAMS, "one gateway takes all"
        streams += await asyncio.gather(*(begin_stream(daemon) for _ in range(4)))
        await all_are_reported(daemon, len(streams))
    before = await metrics(daemon)
    victim, num_victims = daemon.actors()["gateway2"], num_open(daemon)["gateway2"]
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    ends = [asyncio.create_task(read_to_end(client)) for client in streams]
    await until("it is seen", lambda: daemon.actors()["gateway2"].restarts == {"killed": 1})
    assert daemon.status().state == "ready"
    assert await asyncio.gather(*(ask(daemon, {"prompt": "a"}) for _ in range(8))) == [200] * 8
    await until("its streams end", lambda: sum(end.done() for end in ends) == num_victims)
    for client in streams:
        client.hang_up()
    await until("the next one runs", lambda: daemon.actors()["gateway2"].state == "running")
    await until("all have left", lambda: daemon.is_at_rest() and not any(num_open(daemon).values()))
    for _ in range(8):
        page = await metrics(daemon)
        check_growth(before, page)
        check_sums(page)
        assert page.value("pillion_requests_total", outcome="lost") == num_victims
        restarts = {"actor": "gateway2", "reason": "killed"}
        assert page.value("pillion_actor_restarts_total", **restarts) == 1
        before = page


@pytest.mark.model
async def test_whatever_happens_to_requests_the_numbers_add_up(start_ring: StartRing) -> None:
    rng = random.Random(1)
    daemon = start_ring(http_gateways=2, max_num_seqs=4, max_queued_requests=12)

    async def one() -> None:
        kind = rng.choice(["finish", "finish", "stream", "bad", "leave", "begin", "time out"])
        if kind in ("leave", "begin"):
            client = await HttpClient.connect(daemon.http)
            client.send("POST", "/v1/completions", HttpClient.encode(ENDLESS))
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                if kind == "begin":
                    await client.receive_head()
            client.hang_up()
            return
        body = {
            "prompt": "some words",
            "max_tokens": rng.randrange(1, 40),
            "n": rng.choice([1, 1, 3]),
            "stream": kind == "stream",
        }
        body |= {"bad": {"temperature": -1}, "time out": {"timeout": 0.01}}.get(kind, {})
        # Its gateway may have been killed.
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await ask(daemon, body)

    before = await metrics(daemon)
    for victim in (None, "scheduler", "detokenizer", "gateway", "gpu_worker"):
        load = [asyncio.create_task(one()) for _ in range(20)]
        if victim is not None:
            pid = daemon.actors()[victim].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until("it is replaced", lambda name=victim: has_died(daemon, name))
        await asyncio.gather(*load)
        await until(
            "all live", lambda: {actor.state for actor in daemon.status().actors} == {"running"}
        )
        await until(
            "all have left", lambda: daemon.is_at_rest() and not any(num_open(daemon).values())
        )
        page = await metrics(daemon)
        check_sums(page)
        check_growth(before, page)
        before = page
        async with asyncio.timeout(REPORTED_S):
            while page.sum("vllm:kv_cache_usage_perc"):
                page = await metrics(daemon)
    assert before.value("pillion_client_requests_received_total") > 10
