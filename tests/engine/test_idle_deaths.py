"""An actor is killed while nothing runs; a request that comes at once is served."""

import os
import signal

import pytest
from ring_daemon import NAME, StartRing

from pillion import AsyncClient, SamplingParams

pytestmark = pytest.mark.model

KILLED = ("scheduler", "kv_manager", "detokenizer", "gpu_worker")


async def test_a_request_right_behind_a_death_is_served(start_ring: StartRing) -> None:
    daemon = start_ring(step_us=0, max_restarts=10)
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    async with AsyncClient(NAME) as client:
        undisturbed = await client.generate([3, 4, 5], params)
        for name in KILLED:
            pid = daemon.actors()[name].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            output = await client.generate([3, 4, 5], params, timeout=20.0)
            assert output.outputs[0].token_ids == undisturbed.outputs[0].token_ids, name
            assert output.outputs[0].finish_reason == "length"
    assert [daemon.actors()[name].epoch for name in KILLED] == [2] * len(KILLED)
