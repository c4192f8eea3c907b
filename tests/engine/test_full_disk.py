"""A disk that is full while the daemon runs: it says no more, and serves on. A limit on files' sizes stands for it."""

import os
import signal

import pytest
from http_client import HttpClient
from ring_daemon import RingDaemon, StartRing, until

FULL_AT_BYTES = 6144
FULL_SOON = ("sh", "-c", f'ulimit -f {FULL_AT_BYTES // 512}; exec "$@"', "sh")
LONGEST_LINE_BYTES = 300


def log_is_full(daemon: RingDaemon) -> bool:
    return daemon.directory.log.stat().st_size > FULL_AT_BYTES - LONGEST_LINE_BYTES


async def kill(daemon: RingDaemon, name: str) -> None:
    """Returns when its next life serves."""
    actor = daemon.actors()[name]
    assert actor.pid is not None
    os.kill(actor.pid, signal.SIGKILL)
    await until("it is replaced", lambda: daemon.actors()[name].epoch > actor.epoch)
    await until("all is well", lambda: daemon.status().state == "ready")


@pytest.mark.model
async def test_a_log_that_cannot_grow_stops_nobody(start_ring: StartRing) -> None:
    daemon = start_ring(prefix=FULL_SOON, max_restarts=1000)
    while not log_is_full(daemon):
        await kill(daemon, "kv_manager")
    for name in ("scheduler", "detokenizer", "gpu_worker", "kv_manager", "gateway"):
        await kill(daemon, name)
    client = await HttpClient.connect(daemon.http)
    answer = await client.ask("POST", "/v1/completions", {"prompt": "word", "max_tokens": 2})
    client.hang_up()
    assert answer.status == 200
    kinds = [kind for actor in daemon.actors().values() for kind in actor.restarts]
    assert set(kinds) == {"killed"}, "nobody died of it"
    daemon.terminate()
    assert daemon.process.wait(20) == 0
