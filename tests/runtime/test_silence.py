"""A launcher that a signal has stopped: every command that asks it says so, with its pid and what to do, and soon."""

import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest
from waiting import wait_until

from pillion.messages.control import StopRequest
from pillion.runtime import control_socket, health_checks
from pillion.runtime.cli import main
from pillion.runtime.commands.top import ask_live_view
from pillion.runtime.control_socket import ControlClient
from pillion.runtime.daemon_socket import connect_failure
from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.paths import DaemonLock, RunDir

from .conftest import FakeDaemon, StartDaemon, processes_of

SOON_S = 3.0


@pytest.fixture
def stopped(start_daemon: StartDaemon) -> Iterator[FakeDaemon]:
    daemon = start_daemon()
    daemon.wait_state("ready")
    os.kill(daemon.process.pid, signal.SIGSTOP)
    yield daemon
    os.kill(daemon.process.pid, signal.SIGCONT)


def what_to_do(daemon: FakeDaemon) -> str:
    pid = daemon.process.pid
    return f"(pid {pid}) is stopped, as by Ctrl-Z or SIGSTOP: `kill -CONT {pid}`"


def test_each_command_says_so(stopped: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    commands = (
        ["status"],
        ["status", "--json"],
        ["status", "--probe", "live"],
        ["status", "--probe", "ready"],
        ["stop"],
        ["stop", "--now"],
    )
    for command in commands:
        began = time.monotonic()
        assert main([*command, "--name", "d"]) == 1
        assert what_to_do(stopped) in capsys.readouterr().err
        assert time.monotonic() - began < SOON_S
    with pytest.raises(DaemonUnavailable) as raised:
        ask_live_view(stopped.directory)  # as `pillion top`
    assert what_to_do(stopped) in str(raised.value)
    (finding,) = health_checks.check_daemons()
    assert what_to_do(stopped) in finding.detail
    late = connect_failure(stopped.directory.client_socket, TimeoutError())
    assert what_to_do(stopped) in str(late)


def test_what_it_says_to_do_helps(stopped: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    os.kill(stopped.process.pid, signal.SIGCONT)
    assert main(["status", "--probe", "live", "--name", "d"]) == 0
    os.kill(stopped.process.pid, signal.SIGSTOP)
    os.kill(stopped.process.pid, signal.SIGKILL)
    wait_until("all have ended", 5, lambda: processes_of(stopped.directory) == [])


def test_one_that_is_stopped_while_it_is_waited_for(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "STOPPED_LOOK_S", 0.05)
    daemon = start_daemon({"detokenizer": "never_drained"}, {"drain_s": 60.0})
    daemon.wait_state("ready")
    client = ControlClient(daemon.directory)
    client.ask(StopRequest())
    os.kill(daemon.process.pid, signal.SIGSTOP)
    with pytest.raises(DaemonUnavailable) as raised:
        client.wait_hang_up(30)
    client.close()
    assert what_to_do(daemon) in str(raised.value)


def test_one_that_is_merely_slow_is_not_called_stopped(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "STOPPED_LOOK_S", 0.05)
    lock = DaemonLock.acquire(run_dir)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(run_dir.control_socket))
        listening.listen()
        client = ControlClient(run_dir, timeout_s=0.3)
        with pytest.raises(DaemonUnavailable, match="nothing came within"):
            client.ask(StopRequest())
        client.close()
    lock.release()
