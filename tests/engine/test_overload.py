"""10,000 requests at once against two slots: real processes, real sockets, a worker that answers at once."""

import asyncio
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pillion import AsyncClient, SamplingParams
from pillion.messages.control import ActorStatus
from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import locate_model
from pillion.runtime.errors import RequestError
from pillion.runtime.paths import run_dir
from pillion.runtime.process import child_environment

pytestmark = pytest.mark.model

DAEMON = Path(__file__).parents[1] / "ring" / "fake_worker_daemon.py"
NUM_REQUESTS = 10_000
NUM_SLOTS = 2
MAX_QUEUED = 1024
# An open request costs its tokens and a few objects; refused ones must cost nothing.
MAX_GROWTH_BYTES = 60 << 20


@pytest.fixture
def daemon(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The client socket of a daemon with a fake worker."""
    monkeypatch.setenv("PILLION_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
    settings = EngineConfig(
        model=str(smollm2_path),
        name="fake",
        max_num_seqs=NUM_SLOTS,
        max_queued_requests=MAX_QUEUED,
        max_model_len=100_000,
    )
    config = locate_model(settings, progress=False)
    lifetime_fd, our_lifetime_fd = os.pipe()
    our_ready_fd, ready_fd = os.pipe()
    command = [
        sys.executable,
        str(DAEMON),
        "--step-us=300",
        f"--config={config.to_json().decode()}",
    ]
    command += [f"--lifetime-fd={lifetime_fd}", f"--ready-fd={ready_fd}"]
    process = subprocess.Popen(command, pass_fds=(lifetime_fd, ready_fd), env=child_environment())
    os.close(lifetime_fd)
    os.close(ready_fd)
    with open(our_ready_fd) as outcome:
        assert select.select([outcome], [], [], 60.0)[0], "the daemon's word"
        assert '"ready":true' in outcome.readline().replace(" ", "")
    yield run_dir("fake").client_socket
    os.close(our_lifetime_fd)
    process.wait(20.0)


async def actors_of(client: AsyncClient) -> dict[str, ActorStatus]:
    return {actor.name: actor for actor in (await client.status()).actors}


async def nothing_is_open(client: AsyncClient) -> dict[str, ActorStatus]:
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        actors = await actors_of(client)
        if (
            actors["detokenizer"].gauges["open_requests"] == 0
            and actors["scheduler"].gauges["running"] == 0
            and actors["scheduler"].gauges["waiting"] == 0
            and actors["kv_manager"].gauges["referenced_blocks_0"] == 0
        ):
            return actors
        await asyncio.sleep(0.1)
    pytest.fail("requests or blocks are still held 20 s after the last answer")


async def test_ten_thousand_at_once_against_two_slots(daemon: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    finished = 0
    refusals: list[RequestError] = []

    async with AsyncClient(daemon) as client:
        before = await actors_of(client)

        async def one(number: int) -> None:
            nonlocal finished
            try:
                output = await client.generate([3 + number % 1000, 7], params)
            except RequestError as error:
                refusals.append(error)
            else:
                finished += 1
                assert len(output.outputs[0].token_ids) == 4

        await asyncio.gather(*(one(number) for number in range(NUM_REQUESTS)))
        after = await nothing_is_open(client)

    assert finished + len(refusals) == NUM_REQUESTS
    assert finished >= NUM_SLOTS + MAX_QUEUED
    assert refusals
    assert {error.code for error in refusals} == {"overloaded"}
    assert all(error.retry_after_ms is not None for error in refusals)
    for name in ("detokenizer", "scheduler", "kv_manager", "launcher"):
        growth = after[name].rss_bytes - before[name].rss_bytes
        assert growth < MAX_GROWTH_BYTES, f"{name} grew by {growth >> 20} MiB"


async def test_a_refusal_takes_no_time_while_the_queue_is_full(daemon: Path) -> None:
    """Each request that does not fit hears so within 100 ms."""
    # The fake worker takes 0.3 ms a step: the first two answers alone last longer than this test.
    endless = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    async with AsyncClient(daemon) as busy, AsyncClient(daemon) as late:
        streams = [
            await busy.generate([5, number + 3], endless, stream=True)
            for number in range(NUM_SLOTS + MAX_QUEUED)
        ]
        deadline = time.monotonic() + 20.0
        while (await actors_of(busy))["detokenizer"].gauges["open_requests"] < len(streams):
            assert time.monotonic() < deadline, "the edge has taken every request"
            await asyncio.sleep(0.1)
        took = []
        for number in range(200):
            start = time.perf_counter()
            with pytest.raises(RequestError) as refusal:
                await late.generate([9, number + 3], endless)
            took.append(time.perf_counter() - start)
            assert refusal.value.code == "overloaded"
        for stream in streams:
            stream.close()
        await nothing_is_open(late)
    assert statistics.quantiles(took, n=100)[98] < 0.1
