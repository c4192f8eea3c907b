"""Daemons of real processes with fake actors, of which one hangs or only seems to."""

import os
import signal
import time

import pytest
from waiting import wait_until

from .conftest import FakeDaemon, StartDaemon

ACTORS = ("kv_manager", "scheduler", "detokenizer", "gpu_worker")
STALL_LIMIT_S = 1.0
FOUND_WITHIN_S = STALL_LIMIT_S + 1.0


def epochs(daemon: FakeDaemon) -> dict[str, int]:
    return {actor.name: actor.epoch for actor in daemon.status().actors}


def seconds_until_replaced(daemon: FakeDaemon, actor: str) -> float:
    began = time.monotonic()
    wait_until("it is replaced", 10, lambda: epochs(daemon)[actor] == 2)
    return time.monotonic() - began


@pytest.mark.parametrize("victim", ACTORS)
def test_a_stopped_actor_is_replaced_though_nobody_needs_it(
    start_daemon: StartDaemon, victim: str
) -> None:
    daemon = start_daemon(config={"stall_limit_s": STALL_LIMIT_S})
    daemon.wait_state("ready")
    pid = daemon.wait_actors({victim: "running"})[victim]
    os.kill(pid, signal.SIGSTOP)
    assert seconds_until_replaced(daemon, victim) < FOUND_WITHIN_S
    daemon.wait_state("ready")
    log = daemon.directory.log.read_text()
    assert f"{victim} (pid {pid}) hung: it is stopped and has made no progress for 1." in log


def test_a_spinning_actor_is_replaced(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(
        config={"stall_limit_s": STALL_LIMIT_S, "fault_flags": ["scheduler:spin_loop"]}
    )
    daemon.wait_state("ready")
    assert seconds_until_replaced(daemon, "scheduler") < FOUND_WITHIN_S
    daemon.wait_state("ready")
    assert "hung: its loop has not come round for stall_limit_s = 1 s" in (
        daemon.directory.log.read_text()
    )


def test_an_actor_stopped_while_it_starts_ends_the_start(start_daemon: StartDaemon) -> None:
    daemon = start_daemon({"gpu_worker": "stopped"}, {"stall_limit_s": STALL_LIMIT_S})
    code, stderr = daemon.wait_end(15)
    assert code == 1
    assert "hung: it is stopped" in stderr[-1]
    daemon.nothing_is_left()


def test_a_slow_step_and_idle_actors_are_left_alone(start_daemon: StartDaemon) -> None:
    daemon = start_daemon({"gpu_worker": "slow_step"}, {"stall_limit_s": 0.5, "step_limit_s": 8.0})
    daemon.wait_state("ready")
    step_is_over = "gpu_worker has run its slow step"
    wait_until(step_is_over, 15, lambda: step_is_over in daemon.directory.log.read_text())
    assert set(epochs(daemon).values()) == {1}


def test_a_step_that_never_ends_is_found(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(
        {"gpu_worker": "first_life_stuck_step"}, {"stall_limit_s": 0.5, "step_limit_s": 2.0}
    )
    daemon.wait_state("ready")
    assert 1.0 < seconds_until_replaced(daemon, "gpu_worker") < 3.0
    hung = "hung: its step has made no progress for step_limit_s = 2 s"
    assert hung in daemon.directory.log.read_text()
    # What it was at may be to blame, so the scheduler hears of it.
    news = "scheduler got PeerRestarted(actor='gpu_worker', epoch=2, crash='gpu_worker (pid "
    wait_until(news, 5, lambda: news in daemon.directory.log.read_text())


def test_a_slow_start_is_left_alone(start_daemon: StartDaemon) -> None:
    flags = ["gpu_worker:delay_load=3000"]
    daemon = start_daemon(config={"stall_limit_s": 0.5, "fault_flags": flags})
    daemon.wait_state("ready")
    assert set(epochs(daemon).values()) == {1}
