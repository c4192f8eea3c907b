"""Daemons of real processes with fake actors beside others: of another user, and in a session that ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from pillion.runtime.control_socket import ControlClient
from pillion.runtime.errors import ConfigError, DaemonUnavailable
from pillion.runtime.paths import RunDir
from pillion.runtime.process import child_environment

from .conftest import FAKE_DAEMON, START_DEADLINE_S, StartDaemon, processes_of

END_DEADLINE_S = 10.0
# Leads a session at the terminal that is its standard input, and runs a command there.
LEADER = """
import fcntl, subprocess, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY)
subprocess.run(sys.argv[1:])
"""


def is_ready(directory: RunDir) -> bool:
    try:
        client = ControlClient(directory)
    except DaemonUnavailable:
        return False
    client.close()
    return len(processes_of(directory)) == 4


def test_a_session_whose_leader_is_killed_takes_its_daemon_along(runtime_root: Path) -> None:
    directory = RunDir(runtime_root / "d")
    serve = [sys.executable, str(FAKE_DAEMON), "{}", '--config={"model": "fake", "name": "d"}']
    ours, terminal = os.openpty()
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER, *serve, "--foreground"],
        start_new_session=True,
        stdin=terminal,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=child_environment(),
    )
    os.close(terminal)
    try:
        wait_until("the daemon runs", START_DEADLINE_S, lambda: is_ready(directory))
        processes = [leader.pid, *processes_of(directory)]
        assert {os.getsid(pid) for pid in processes} == {leader.pid}
        groups = [Path(f"/proc/{pid}/cgroup").read_text() for pid in processes]
        assert len(set(groups)) == 1, "who ends the control group ends them all"
    finally:
        leader.kill()
        leader.wait(END_DEADLINE_S)
    wait_until("nobody is left", END_DEADLINE_S, lambda: processes_of(directory) == [])
    wait_until("nobody listens", END_DEADLINE_S, lambda: not directory.control_socket.exists())
    os.close(ours)


def test_who_finds_the_place_of_another_user_hears_whose_it_is(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default their places differ; with the same PILLION_RUNTIME_DIR they do not."""
    daemon = start_daemon()
    daemon.wait_state("ready")
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(ConfigError) as refusal:
        daemon.directory.create()
    told = str(refusal.value)
    assert told.startswith(f"{daemon.directory.root} belongs to the user with id {owner}, ")
    for pid in processes_of(daemon.directory):
        assert str(pid) in told
    assert "choose another --name or set PILLION_RUNTIME_DIR" in told
    monkeypatch.undo()
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait_end(END_DEADLINE_S)[0] == 0
