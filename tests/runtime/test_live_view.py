"""What is shown of a daemon, from its status."""

import msgspec
from fake_actor import geometry

from pillion.messages.control import ActorStatus, DaemonStatus
from pillion.runtime.live_view import KvBlocks, Queue, StepSplit, TokenRates, live_view


def actor(name: str, **fields: object) -> ActorStatus:
    plain = ActorStatus(
        name=name,
        state="running",
        pid=7,
        epoch=1,
        rss_bytes=1 << 20,
        cpu_seconds=1.5,
        counters={},
        gauges={},
    )
    return msgspec.structs.replace(plain, **fields)


STARTING = DaemonStatus(
    version="9.9",
    name="d",
    pid=6,
    state="starting",
    model="fake",
    uptime_s=2.5,
    ready_after_s=None,
    start_phases=[],
    geometry=None,
    actors=[actor("gpu_worker", state="starting")],
    failure=None,
    not_ready="the daemon starts: waiting for gpu_worker",
)
GEOMETRY = msgspec.structs.replace(geometry(1), weights_bytes=300, kv_bytes=500)


def test_a_daemon_that_starts() -> None:
    view = live_view(STARTING)
    assert (view.state, view.not_ready, view.device) == ("starting", STARTING.not_ready, None)
    assert view.queue == Queue(running=0, waiting=0, max_running=None)
    assert view.kv_blocks is None
    assert view.step is None
    assert view.tokens_per_second == TokenRates(prompt=0.0, generated=0.0)


def test_a_daemon_that_works() -> None:
    rates = {
        "steps": 20.0,
        "prefill_tokens": 640.0,
        "prepare_ns": 10e6,
        "execute_ns": 300e6,
        "output_ns": 5e6,
        "bubble_ns": 2e6,
    }
    blocks = {f"{state}_blocks_{group}": 4 for state in ("leased", "cached") for group in (0, 1)}
    queue = {"running": 3, "waiting": 2, "leased_blocks": 5}
    actors = [
        actor("scheduler", gauges=queue, rates={"generated_tokens": 60.0}),
        actor("kv_manager", gauges={**blocks, "free_blocks_0": 16, "referenced_blocks_1": 1, "owed_blocks_0": 9}),
        actor("gpu_worker", rates=rates),
    ]  # fmt: skip
    view = live_view(
        msgspec.structs.replace(
            STARTING, state="ready", not_ready=None, geometry=GEOMETRY, actors=actors
        )
    )
    assert view.not_ready is None
    assert (view.device, view.weights_bytes, view.kv_bytes) == ("cpu", 300, 500)
    assert view.queue == Queue(running=3, waiting=2, max_running=4)
    assert view.kv_blocks == KvBlocks(used=8 - 5 + 1, cached=8, total=33)
    assert view.tokens_per_second == TokenRates(prompt=640.0, generated=60.0)
    assert view.step == StepSplit(
        per_second=20.0, prepare_ms=0.5, execute_ms=15.0, output_ms=0.25, bubble_ms=0.1
    )


def test_actors_and_how_they_died() -> None:
    died = actor(
        "gpu_worker",
        epoch=3,
        restarts={"killed": 2},
        last_death="gpu_worker (pid 5) was killed by SIGKILL",
        last_death_s_ago=4.0,
    )
    (shown,) = live_view(msgspec.structs.replace(STARTING, actors=[died])).actors
    assert (shown.name, shown.pid, shown.life, shown.memory_bytes) == ("gpu_worker", 7, 3, 1 << 20)
    assert shown.restarts == {"killed": 2}
    assert (shown.last_death, shown.last_death_s_ago) == (died.last_death, 4.0)


def test_a_daemon_that_failed_says_why() -> None:
    failed = msgspec.structs.replace(STARTING, state="failed", failure="the cause")
    assert live_view(failed).not_ready == "the cause"


def test_a_dead_actor_has_no_numbers() -> None:
    dead = actor("scheduler", pid=None, gauges={"running": 3}, rates={"generated_tokens": 60.0})
    view = live_view(msgspec.structs.replace(STARTING, actors=[dead]))
    assert view.queue.running == 0
    assert view.tokens_per_second.generated == 0.0
