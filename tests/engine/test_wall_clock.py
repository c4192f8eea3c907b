"""The wall clock may jump, as when a machine learns the time: nothing that waits or measures looks at it."""

import os
import signal
from pathlib import Path

import pytest
from http_client import HttpClient
from ring_daemon import StartRing, until

# Python runs this in each process of the daemon: days ahead, years back, at each look.
JUMPS = """
import random, time
_now_ns = time.time_ns
def _jump_ns():
    return max(0, _now_ns() + random.choice((0, 10**6, -10**9, 10**14, -10**14, 10**17, -10**18)))
time.time_ns = _jump_ns
time.time = lambda: _jump_ns() / 1e9
"""


@pytest.mark.model
async def test_a_clock_that_jumps_all_the_time_disturbs_nobody(
    start_ring: StartRing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(JUMPS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    daemon = start_ring()
    client = await HttpClient.connect(daemon.http)
    created = set()
    for victim in ("scheduler", "gpu_worker", "detokenizer", None):
        for _ in range(10):
            body = {"prompt": "word", "max_tokens": 8, "timeout": 20}
            answer = await client.ask("POST", "/v1/completions", body)
            assert answer.status == 200
            created.add(answer.json["created"])
        assert (await client.ask("GET", "/metrics")).status == 200
        if victim is not None:
            pid = daemon.actors()[victim].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(
                "it is replaced",
                lambda name=victim: daemon.actors()[name].restarts == {"killed": 1},
            )
            await until("all is well", lambda: daemon.status().state == "ready")
    client.hang_up()
    assert max(created) - min(created) > 86_400, "it did jump"
    assert 0 < daemon.status().uptime_s < 600
    assert sum(sum(actor.restarts.values()) for actor in daemon.actors().values()) == 3
    daemon.terminate()
    assert daemon.process.wait(20) == 0
