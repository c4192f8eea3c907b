"""Daemons of real processes with fake actors: what follows the death of one of them."""

import os
import signal
import time

import pytest
from waiting import wait_until

from pillion.messages.control import ProbeReply
from pillion.runtime.cli import main

from .conftest import FakeDaemon, StartDaemon

SOON_S = 30.0  # a busy machine takes a while to start an interpreter
ACTORS = ("kv_manager", "scheduler", "detokenizer", "gpu_worker")


def epochs(daemon: FakeDaemon) -> dict[str, int]:
    return {actor.name: actor.epoch for actor in daemon.status().actors}


def said(daemon: FakeDaemon, line: str) -> bool:
    return line in daemon.directory.log.read_text()


@pytest.mark.parametrize("victim", ACTORS)
def test_an_actor_that_is_killed_lives_again_and_everybody_knows(
    start_daemon: StartDaemon, victim: str
) -> None:
    daemon = start_daemon()
    daemon.wait_state("ready")
    for life in (2, 3):
        pid = daemon.wait_actors({victim: "running"})[victim]
        os.kill(pid, signal.SIGKILL)
        wait_until(
            "the next life has begun", SOON_S, lambda life=life: epochs(daemon)[victim] == life
        )
        status = daemon.wait_state("ready")
        assert {actor.state for actor in status.actors} == {"running"}
        assert said(daemon, f"{victim} (pid {pid}) was killed by SIGKILL")
        for peer in ACTORS:
            if peer != victim:
                # Who is killed from outside has brought it on by nothing that was asked of it.
                news = f"{peer} got PeerRestarted(actor='{victim}', epoch={life}, crash=None)"
                wait_until(news, SOON_S, lambda news=news: said(daemon, news))
    geometry_epoch = 3 if victim == "gpu_worker" else 1
    for actor in ACTORS[:3]:
        last = f"{actor} got EngineGeometry(epoch={geometry_epoch}"
        wait_until(last, SOON_S, lambda last=last: said(daemon, last))
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait_end(SOON_S)[0] == 0
    daemon.nothing_is_left()


def test_the_daemon_says_that_it_recovers_and_from_what(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(config={"fault_flags": ["gpu_worker:delay_load=60000:epoch=2"]})
    daemon.wait_state("ready")
    assert daemon.probe() == ProbeReply(is_live=True, is_ready=True)
    pid = daemon.wait_actors({"gpu_worker": "running"})["gpu_worker"]
    os.kill(pid, signal.SIGKILL)
    wait_until("it is not ready", SOON_S, lambda: not daemon.probe().is_ready)
    cause = f"gpu_worker (pid {pid}) was killed by SIGKILL"
    assert daemon.probe() == ProbeReply(
        is_live=True, is_ready=False, reason=f"recovering gpu_worker: {cause}"
    )
    status = daemon.status()
    assert (status.state, status.not_ready) == ("recovering", f"recovering gpu_worker: {cause}")
    assert main(["status", "--name", "d", "--probe", "live"]) == 0
    assert main(["status", "--name", "d", "--probe", "ready"]) == 1
    (worker,) = (actor for actor in daemon.status().actors if actor.name == "gpu_worker")
    assert (worker.restarts, worker.last_death) == ({"killed": 1}, cause)
    assert worker.last_death_s_ago is not None
    assert 0 < worker.last_death_s_ago < 60
    # The second life would load for a minute.
    os.kill(daemon.wait_actors({"gpu_worker": "starting"})["gpu_worker"], signal.SIGKILL)
    wait_until("the third life has begun", SOON_S, lambda: epochs(daemon)["gpu_worker"] == 3)
    daemon.wait_state("ready")
    assert main(["status", "--name", "d", "--probe", "ready"]) == 0


def test_a_life_that_fails_to_load_is_not_ready_and_the_next_one_is(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon(config={"fault_flags": ["gpu_worker:fail_load:epoch=2"]})
    daemon.wait_state("ready")
    os.kill(daemon.wait_actors({"gpu_worker": "running"})["gpu_worker"], signal.SIGKILL)
    wait_until("the third life has begun", SOON_S, lambda: epochs(daemon)["gpu_worker"] == 3)
    status = daemon.wait_state("ready")
    (worker,) = (actor for actor in status.actors if actor.name == "gpu_worker")
    assert worker.restarts == {"killed": 1, "failed": 1}
    assert "the weights are missing" in str(worker.last_death)


def test_death_is_seen_within_50_ms(start_daemon: StartDaemon) -> None:
    """The fastest of some: what the machine does meanwhile can only add to it."""
    daemon = start_daemon(config={"max_restarts": 100})
    delays = []
    for _ in range(5):
        daemon.wait_state("ready")
        pid = daemon.wait_actors({"kv_manager": "running"})["kv_manager"]
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        wait_until("it is not ready", SOON_S, lambda: not daemon.probe().is_ready)
        delays.append(time.monotonic() - began)
    assert min(delays) < 0.05


def test_a_new_life_hears_of_the_worker_that_lives(start_daemon: StartDaemon) -> None:
    """Scheduler and worker die together: the next scheduler gets the sizes of the next worker only."""
    daemon = start_daemon()
    daemon.wait_state("ready")
    pids = daemon.wait_actors({"scheduler": "running"})
    first = "scheduler got EngineGeometry(epoch=1"
    wait_until(first, SOON_S, lambda: said(daemon, first))
    for victim in ("gpu_worker", "scheduler"):
        os.kill(pids[victim], signal.SIGKILL)
    wait_until(
        "both live again",
        SOON_S,
        lambda: epochs(daemon)["scheduler"] == epochs(daemon)["gpu_worker"] == 2,
    )
    daemon.wait_state("ready")
    last = "scheduler got EngineGeometry(epoch=2"
    wait_until(last, SOON_S, lambda: said(daemon, last))
    lines = daemon.directory.log.read_text().splitlines()
    told = [line for line in lines if line.startswith("scheduler got EngineGeometry")]
    assert [line.partition("epoch=")[2][0] for line in told] == ["1", "2"]


def test_an_actor_that_dies_at_each_start_spends_the_budget(start_daemon: StartDaemon) -> None:
    flags = [f"gpu_worker:exit_at_start=3:epoch={life}" for life in range(2, 9)]
    daemon = start_daemon(config={"max_restarts": 3, "fault_flags": flags})
    daemon.wait_state("ready")
    pid = daemon.wait_actors({"gpu_worker": "running"})["gpu_worker"]
    os.kill(pid, signal.SIGKILL)
    code, stderr = daemon.wait_end(60)
    assert code == 1
    assert stderr[-1].endswith(
        "failed: gpu_worker died 4 times within restart_period_s = 60 s, "
        f"and first thus: gpu_worker (pid {pid}) was killed by SIGKILL"
    )
    assert sum("gpu_worker is started again" in line for line in stderr) == 3
    assert sum("exited with code 3" in line for line in stderr) == 3
    daemon.nothing_is_left()


def test_who_hears_of_a_worker_hears_that_it_crashed(start_daemon: StartDaemon) -> None:
    daemon = start_daemon({"gpu_worker": "crash_on_restart"})
    daemon.wait_state("ready")
    actors = daemon.wait_actors({"gpu_worker": "running", "kv_manager": "running"})
    os.kill(actors["kv_manager"], signal.SIGKILL)
    cause = f"gpu_worker (pid {actors['gpu_worker']}) was killed by SIGSEGV"
    news = f"scheduler got PeerRestarted(actor='gpu_worker', epoch=2, crash='{cause}')"
    wait_until(news, SOON_S, lambda: said(daemon, news))


def test_a_bug_is_told_with_its_cause_and_the_actor_lives_again(start_daemon: StartDaemon) -> None:
    daemon = start_daemon({"kv_manager": "raise_on_restart"})
    daemon.wait_state("ready")
    os.kill(daemon.wait_actors({"scheduler": "running"})["scheduler"], signal.SIGKILL)
    wait_until("the KV manager lives again", SOON_S, lambda: epochs(daemon)["kv_manager"] == 2)
    daemon.wait_state("ready")
    assert said(daemon, "exited with code 1: RuntimeError: a peer restarted")


def test_a_crash_is_one_line_of_cause_and_one_of_restart_and_all_agree(
    start_daemon: StartDaemon,
) -> None:
    flags = ["scheduler:raise_in_loop:message=2"]  # the second is word of another actor's new life
    daemon = start_daemon(config={"fault_flags": flags})
    daemon.wait_state("ready")
    os.kill(daemon.wait_actors({"kv_manager": "running"})["kv_manager"], signal.SIGKILL)
    wait_until("the scheduler lives again", SOON_S, lambda: epochs(daemon)["scheduler"] == 2)
    status = daemon.wait_state("ready")
    assert daemon.probe().is_ready
    assert status.not_ready is None
    assert status.failure is None
    lines = daemon.directory.log.read_text().splitlines()
    assert sum("ERROR" in line for line in lines) == 1
    assert sum("WARNING" in line and "scheduler" in line for line in lines) == 1
    assert sum("scheduler is started again" in line for line in lines) == 1


def test_an_actor_that_dies_during_a_drain_lives_again_and_drains(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon({"detokenizer": "first_life_never_drained"}, {"drain_s": 60.0})
    daemon.wait_state("ready")
    pid = daemon.wait_actors({"detokenizer": "running"})["detokenizer"]
    daemon.process.send_signal(signal.SIGTERM)
    wait_until("it hears of the drain", SOON_S, lambda: said(daemon, "detokenizer got Drain"))
    os.kill(pid, signal.SIGKILL)
    code, stderr = daemon.wait_end(SOON_S)
    assert code == 0
    assert sum("detokenizer got Drain" in line for line in stderr) == 2
    daemon.nothing_is_left()
