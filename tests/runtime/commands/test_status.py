"""`pillion status`: what a person reads."""

from pathlib import Path

import msgspec
import pytest
from fake_actor import geometry

from pillion.messages.control import ActorStatus, DaemonStatus
from pillion.runtime.cli import main
from pillion.runtime.commands.status import describe
from pillion.runtime.paths import RunDir

GEOMETRY = msgspec.structs.replace(geometry(1), weights_bytes=3 << 20, kv_bytes=5 << 20)
WORKER = ActorStatus(
    name="gpu_worker",
    state="running",
    pid=77,
    epoch=1,
    rss_bytes=50 << 20,
    cpu_seconds=1.25,
    counters={"steps": 1234567},
    gauges={"share": 0.25, "phase": "decode"},
)
STATUS = DaemonStatus(
    version="9.9",
    name="d",
    pid=76,
    state="ready",
    model="fake",
    uptime_s=4000.0,
    ready_after_s=1.5,
    start_phases=[("gpu_worker", "weights", 250.4)],
    geometry=GEOMETRY,
    actors=[WORKER],
    failure=None,
)


def test_a_daemon_that_serves() -> None:
    assert describe(STATUS) == [
        "d: ready, fake, pid 76, up 66 min, pillion 9.9",
        "FakeForCausalLM on cpu in float32: 4 sequences of at most 128 tokens, 64 tokens a step, "
        "weights 3 MiB, KV cache 5 MiB (32 blocks)",
        "",
        "actor        state          pid     memory       cpu",
        "gpu_worker   running         77     50 MiB    1.25 s",
        "",
        "start (ready after 1.50 s)",
        "  gpu_worker   weights                       250 ms",
        "",
        "gpu_worker",
        "  steps                                    1,234,567",
        "  share                                         0.25",
        "  phase                                       decode",
    ]


def test_what_the_memory_of_a_device_is_for() -> None:
    on_device = msgspec.structs.replace(
        GEOMETRY,
        device="cuda:0",
        graphs_bytes=7 << 20,
        workspace_bytes=11 << 20,
        device_bytes=100 << 20,
    )
    line = describe(msgspec.structs.replace(STATUS, geometry=on_device))[1]
    assert line.endswith(
        "weights 3 MiB, KV cache 5 MiB (32 blocks), graphs 7 MiB, largest step 11 MiB of 100 MiB"
    )


def test_a_daemon_that_fails_before_it_knows_anything() -> None:
    worker = msgspec.structs.replace(WORKER, pid=None, state="failed", counters={}, gauges={})
    lines = describe(
        msgspec.structs.replace(
            STATUS,
            state="failed",
            geometry=None,
            uptime_s=7.0,
            ready_after_s=None,
            failure="the cause",
            actors=[worker],
        )
    )
    assert lines[:2] == ["d: failed, fake, pid 76, up 7 s, pillion 9.9", "failure: the cause"]
    assert lines[4] == "gpu_worker   failed           -     50 MiB    1.25 s"
    assert lines[6] == "start (not ready yet)"
    assert len(lines) == 8


def test_long_uptimes() -> None:
    assert "up 30 h 1 min" in describe(msgspec.structs.replace(STATUS, uptime_s=108_060.0))[0]


def test_what_was_restarted_and_why() -> None:
    worker = msgspec.structs.replace(
        WORKER,
        restarts={"killed": 2, "hung": 1},
        last_death="gpu_worker (pid 5) hung: it is stopped",
        last_death_s_ago=130.0,
    )
    lines = describe(
        msgspec.structs.replace(
            STATUS, actors=[worker], state="recovering", not_ready="recovering gpu_worker"
        )
    )
    assert lines[1] == "not ready: recovering gpu_worker"
    assert lines[lines.index("restarts") + 1] == (
        "  gpu_worker   3 (2 killed, 1 hung), last 2 min ago: gpu_worker (pid 5) hung: it is stopped"
    )


def test_a_daemon_that_is_gone_left_a_last_line(
    runtime_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--name", "gone"]) == 1
    assert "last line" not in capsys.readouterr().err
    directory = RunDir(runtime_root / "gone")
    directory.create()
    directory.log.write_text("a line\nfailed: gpu_worker (pid 1) was killed by SIGKILL\n")
    assert main(["status", "--name", "gone"]) == 1
    error = capsys.readouterr().err
    assert "no daemon named 'gone' is running" in error
    assert error.endswith(
        f"the last line of {directory.log} is\n  failed: gpu_worker (pid 1) was killed by SIGKILL\n"
    )
