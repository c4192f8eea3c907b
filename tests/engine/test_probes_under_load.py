"""Probes and the status answer in time whatever the daemon is busy with."""

import asyncio
import json
import statistics
import sys
from pathlib import Path

import pytest
from http_client import HttpClient
from ring_daemon import NAME, RingDaemon, StartRing, until

from pillion import AsyncClient, SamplingParams
from pillion.runtime.process import child_environment

pytestmark = [pytest.mark.model, pytest.mark.slow]

POLLER = Path(__file__).with_name("probe_poller.py")
POLL_S = 6.0
MAX_P99_S = 0.1
NUM_STREAMS = 1_000
NUM_LARGE_PROMPTS = 8
LARGE_PROMPT_BYTES = 2_000_000


async def poll(daemon: RingDaemon) -> dict[str, float]:
    """The 99th percentile of each kind of answer."""
    poller = await asyncio.create_subprocess_exec(
        sys.executable,
        str(POLLER),
        str(daemon.http),
        str(daemon.directory.root),
        str(POLL_S),
        env=child_environment(),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await poller.communicate()
    took: dict[str, list[float]] = json.loads(output)
    assert min(map(len, took.values())) > 20
    return {name: statistics.quantiles(times, n=100)[98] for name, times in took.items()}


async def test_with_a_thousand_streams(start_ring: StartRing) -> None:
    # Steps of the size that a model of some billion parameters takes at this batch.
    daemon = start_ring(step_us=50_000, max_num_seqs=256)
    endless = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    async with AsyncClient(NAME) as client:

        async def read(number: int) -> None:
            stream = await client.generate([number % 900 + 3], endless, stream=True)
            async for _ in stream:
                pass

        readers = [asyncio.create_task(read(number)) for number in range(NUM_STREAMS)]
        await until(
            "all are open",
            lambda: daemon.actors()["detokenizer"].gauges["open_requests"] == NUM_STREAMS,
        )
        slowest = await poll(daemon)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    assert max(slowest.values()) < MAX_P99_S, slowest


async def test_while_large_prompts_are_tokenized(start_ring: StartRing) -> None:
    daemon = start_ring(max_model_len=1_000_000, num_kv_blocks=1 << 20)
    text = "All work and no play makes Jack a dull boy. " * (LARGE_PROMPT_BYTES // 44)
    body = {"prompt": text, "max_tokens": 1}

    statuses: list[int] = []

    async def complete_again_and_again() -> None:
        client = await HttpClient.connect(daemon.http)
        try:
            while True:
                statuses.append((await client.ask("POST", "/v1/completions", body)).status)
        finally:
            client.hang_up()
            await asyncio.sleep(0)  # the transport closes in the loop's next turn

    tasks = [asyncio.create_task(complete_again_and_again()) for _ in range(NUM_LARGE_PROMPTS)]
    slowest = await poll(daemon)
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(end) for end in ends} == {asyncio.CancelledError}, "the load was there to the end"
    assert set(statuses) <= {200}
    assert max(slowest.values()) < MAX_P99_S, slowest
