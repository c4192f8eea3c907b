"""A daemon that is pid 1 of a container: nobody else waits for orphans, and signals have no default there."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from waiting import wait_until

from pillion.runtime.proc_files import children_of, is_zombie

from .conftest import START_DEADLINE_S, FakeDaemon, StartDaemon, processes_of

NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
STOP_DEADLINE_S = 20.0


def can_make_namespaces() -> bool:
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not can_make_namespaces(), reason="needs unshare(1) and the right to make a pid namespace"
)


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> FakeDaemon:
    daemon = start_daemon(behaviours={"detokenizer": "has_child"}, prefix=NAMESPACE)
    daemon.wait_state("ready")
    assert daemon.status().pid == 1
    return daemon


def outer_pid(daemon: FakeDaemon) -> int:
    """The launcher's pid as this process sees it."""
    (pid,) = children_of(daemon.process.pid)
    return pid


def sleepers(daemon: FakeDaemon) -> list[int]:
    """Children of actors, and of the launcher once their actor is gone."""
    launcher = outer_pid(daemon)
    families = [children_of(pid) for pid in [launcher, *children_of(launcher)]]
    names = [(pid, Path(f"/proc/{pid}/comm")) for family in families for pid in family]
    return [pid for pid, name in names if name.exists() and name.read_text() == "sleep\n"]


def test_orphans_of_dead_actors_are_waited_for(daemon: FakeDaemon) -> None:
    (orphan,) = sleepers(daemon)
    actors = [one for one in processes_of(daemon.directory) if orphan in children_of(one)]
    assert len(actors) == 1
    os.kill(actors[0], signal.SIGKILL)
    wait_until("the orphan is gone", START_DEADLINE_S, lambda: not Path(f"/proc/{orphan}").exists())
    wait_until("the next life has its own", START_DEADLINE_S, lambda: len(sleepers(daemon)) == 1)
    daemon.wait_actors({"detokenizer": "running"})
    assert not any(is_zombie(pid) for pid in children_of(outer_pid(daemon)))


def test_sigterm_drains_and_nothing_is_left(daemon: FakeDaemon) -> None:
    (orphan,) = sleepers(daemon)
    os.kill(outer_pid(daemon), signal.SIGTERM)
    code, lines = daemon.wait_end(STOP_DEADLINE_S)
    assert code == 0
    assert any("SIGTERM: draining for at most 5 s" in line for line in lines)
    assert not Path(f"/proc/{orphan}").exists()
    daemon.nothing_is_left()
