"""Schedules, and how they are carried out on processes of the test's own."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from pillion.messages.control import ActorStatus, DaemonStatus
from pillion.runtime.chaos import strikes
from pillion.runtime.chaos.strikes import Strike, Striker, make_schedule
from pillion.runtime.errors import PillionError

ACTORS = ("kv_manager", "scheduler", "detokenizer", "gpu_worker")
DEADLINE_S = 10.0


def test_the_same_seed_gives_the_same_schedule() -> None:
    schedule = make_schedule(1, 500, 5000, ACTORS, 0.1)
    assert schedule == make_schedule(1, 500, 5000, ACTORS, 0.1)
    assert schedule != make_schedule(2, 500, 5000, ACTORS, 0.1)
    due = [strike.after_requests for strike in schedule]
    assert due == sorted(due)
    assert (due[0], due[-1] >= 4900) == (0, True)
    assert 0.05 < sum(strike.stops for strike in schedule) / 500 < 0.2
    struck = Counter(strike.actor for strike in schedule)
    assert set(struck) == set(ACTORS)
    assert struck["gpu_worker"] < struck["scheduler"]
    assert any(
        one.after_requests == two.after_requests for one, two in itertools.pairwise(schedule)
    )


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def status(**actors: tuple[str, int | None]) -> DaemonStatus:
    rows = [
        ActorStatus(
            name=name, state=state, pid=pid, epoch=1, rss_bytes=0, cpu_seconds=0.0, counters={}, gauges={}
        )
        for name, (state, pid) in actors.items()
    ]  # fmt: skip
    fields: dict[str, Any] = {"version": "0", "name": "d", "pid": 1, "model": "m", "uptime_s": 1.0}
    return DaemonStatus(
        **fields, state="ready", ready_after_s=1.0, start_phases=[], geometry=None, actors=rows, failure=None
    )  # fmt: skip


async def strike(schedule: list[Strike], replies: list[DaemonStatus]) -> Striker:
    async def ask() -> DaemonStatus:
        return replies.pop(0) if len(replies) > 1 else replies[0]

    async def finished(count: int) -> None:
        assert count == 3

    striker = Striker(schedule, ask, finished)
    async with asyncio.timeout(DEADLINE_S):
        await striker.run()
    return striker


async def test_a_kill(victim: subprocess.Popen[bytes]) -> None:
    # Its earlier life is reported first, and then one without a process.
    replies = [
        status(scheduler=("exited", 1)),
        status(scheduler=("starting", None)),
        status(scheduler=("running", victim.pid)),
    ]
    striker = await strike([Strike(3, 0.0, "scheduler", False)], replies)
    assert victim.wait(DEADLINE_S) == -signal.SIGKILL
    assert [(blow.actor, blow.stops) for blow in striker.blows] == [("scheduler", False)]


async def test_a_process_is_not_stopped_twice(
    victim: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strikes, "_VICTIM_DEADLINE_S", 0.3)
    replies = [status(scheduler=("running", victim.pid))]
    await strike([Strike(3, 0.0, "scheduler", True)], replies)
    # The kernel may take a moment.
    await asyncio.to_thread(os.waitid, os.P_PID, victim.pid, os.WSTOPPED | os.WNOWAIT)
    with pytest.raises(PillionError, match="scheduler has not come back"):
        await strike([Strike(3, 0.0, "scheduler", True)], replies)
    assert victim.poll() is None
