"""Daemons of real processes with fake actors: what follows the death of one of them."""

import os
import signal

import pytest

from .conftest import FakeDaemon, StartDaemon, wait_until

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
        wait_until("the next life has begun", 5, lambda life=life: epochs(daemon)[victim] == life)
        status = daemon.wait_state("ready")
        assert {actor.state for actor in status.actors} == {"running"}
        assert said(daemon, f"{victim} (pid {pid}) was killed by SIGKILL")
        for peer in ACTORS:
            if peer != victim:
                news = f"{peer} got PeerRestarted(actor='{victim}', epoch={life})"
                wait_until(news, 5, lambda news=news: said(daemon, news))
    geometry_epoch = 3 if victim == "gpu_worker" else 1
    for actor in ACTORS[:3]:
        last = f"{actor} got EngineGeometry(epoch={geometry_epoch}"
        wait_until(last, 5, lambda last=last: said(daemon, last))
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait_end(10)[0] == 0
    daemon.nothing_is_left()


def test_a_new_life_hears_of_the_worker_that_lives(start_daemon: StartDaemon) -> None:
    """Scheduler and worker die together: the next scheduler gets the sizes of the next worker only."""
    daemon = start_daemon()
    daemon.wait_state("ready")
    pids = daemon.wait_actors({"scheduler": "running"})
    for victim in ("gpu_worker", "scheduler"):
        os.kill(pids[victim], signal.SIGKILL)
    wait_until(
        "both live again",
        5,
        lambda: epochs(daemon)["scheduler"] == epochs(daemon)["gpu_worker"] == 2,
    )
    daemon.wait_state("ready")
    lines = daemon.directory.log.read_text().splitlines()
    told = [line for line in lines if line.startswith("scheduler got EngineGeometry")]
    assert [line.partition("epoch=")[2][0] for line in told] == ["1", "2"]


def test_an_actor_that_dies_at_each_start_spends_the_budget(start_daemon: StartDaemon) -> None:
    daemon = start_daemon({"gpu_worker": "later_lives_exit_at_start"}, {"max_restarts": 3})
    daemon.wait_state("ready")
    pid = daemon.wait_actors({"gpu_worker": "running"})["gpu_worker"]
    os.kill(pid, signal.SIGKILL)
    code, stderr = daemon.wait_end(15)
    assert code == 1
    assert stderr[-1].endswith(
        "failed: gpu_worker died 4 times within restart_period_s = 60 s, "
        f"and first thus: gpu_worker (pid {pid}) was killed by SIGKILL"
    )
    assert sum("gpu_worker is started again" in line for line in stderr) == 3
    assert sum("exited with code 3" in line for line in stderr) == 3
    daemon.nothing_is_left()


def test_a_bug_is_told_with_its_cause_and_the_actor_lives_again(start_daemon: StartDaemon) -> None:
    daemon = start_daemon({"kv_manager": "raise_on_restart"})
    daemon.wait_state("ready")
    os.kill(daemon.wait_actors({"scheduler": "running"})["scheduler"], signal.SIGKILL)
    wait_until("the KV manager lives again", 5, lambda: epochs(daemon)["kv_manager"] == 2)
    daemon.wait_state("ready")
    assert said(daemon, "exited with code 1: RuntimeError: a peer restarted")


def test_an_actor_that_dies_during_a_drain_lives_again_and_drains(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon({"detokenizer": "first_life_never_drained"}, {"drain_s": 60.0})
    daemon.wait_state("ready")
    pid = daemon.wait_actors({"detokenizer": "running"})["detokenizer"]
    daemon.process.send_signal(signal.SIGTERM)
    wait_until("it drains", 5, lambda: daemon.status().state == "draining")
    os.kill(pid, signal.SIGKILL)
    code, stderr = daemon.wait_end(10)
    assert code == 0
    assert sum("detokenizer got Drain" in line for line in stderr) == 2
    daemon.nothing_is_left()
