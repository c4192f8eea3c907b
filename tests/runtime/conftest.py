"""Run directories for tests, and daemons whose actors are fake."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from pillion.messages.control import DaemonStatus, ProbeReply, ProbeRequest, StatusRequest
from pillion.runtime.control_socket import ControlClient
from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.paths import RunDir
from pillion.runtime.proc_files import pids_with_argument
from pillion.runtime.process import child_environment

FAKE_DAEMON = Path(__file__).with_name("fake_daemon.py")
ACTIVATE = Path(__file__).with_name("activate.py")
START_DEADLINE_S = 30.0  # a busy machine starts five interpreters


def processes_of(directory: RunDir) -> list[int]:
    """The living actors of the daemon in this run directory."""
    return pids_with_argument(directory.argument)


def sockets_of(directory: RunDir) -> list[str]:
    """Names of the sockets that a daemon has left."""
    return [path.name for path in directory.root.iterdir() if path.is_socket()]


@pytest.fixture
def runtime_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime root with a short path, as socket names need, that commands of the test use too."""
    root = Path(tempfile.mkdtemp(prefix="pillion-", dir="/tmp"))
    monkeypatch.setenv("PILLION_RUNTIME_DIR", str(root))
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def run_dir(runtime_root: Path) -> RunDir:
    """A run directory that exists."""
    directory = RunDir(runtime_root / "d")
    directory.create()
    return directory


class FakeDaemon:
    """A launcher in its own process with fake actors."""

    def __init__(
        self,
        directory: RunDir,
        behaviours: dict[str, str],
        config: dict[str, Any],
        arguments: list[str],
        pass_fds: tuple[int, ...],
        environment: dict[str, str],
        activated: Sequence[socket.socket],
        prefix: Sequence[str],
    ) -> None:
        self.directory = directory
        settings = {"model": "fake", "name": directory.root.name, "drain_s": 5.0, **config}
        fds = tuple(listening.fileno() for listening in activated)
        numbers, names = ",".join(map(str, fds)), ":".join("http" for _ in fds)
        self.process = subprocess.Popen(
            [
                *prefix,
                *([sys.executable, str(ACTIVATE), numbers, names] if fds else []),
                sys.executable,
                str(FAKE_DAEMON),
                json.dumps(behaviours),
                f"--config={json.dumps(settings)}",
                "--foreground",
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**child_environment(), **environment},
            pass_fds=(*pass_fds, *fds),
            text=True,
        )

    def status(self) -> DaemonStatus:
        """Asks the launcher."""
        client = ControlClient(self.directory)
        try:
            status = client.ask(StatusRequest())
        finally:
            client.close()
        assert isinstance(status, DaemonStatus)
        return status

    def probe(self) -> ProbeReply:
        """Asks the launcher whether the daemon is alive and ready."""
        client = ControlClient(self.directory)
        try:
            reply = client.ask(ProbeRequest())
        finally:
            client.close()
        assert isinstance(reply, ProbeReply)
        return reply

    def answers(self) -> bool:
        """Whether the control socket answers."""
        try:
            self.status()
        except DaemonUnavailable:
            return False
        return True

    def wait_state(self, state: str) -> DaemonStatus:
        """Waits for a state of the daemon."""
        wait_until(
            f"the daemon is {state}",
            START_DEADLINE_S,
            lambda: (
                self.process.poll() is not None or (self.answers() and self.status().state == state)
            ),
        )
        assert self.process.poll() is None, self.process.communicate()[1]
        return self.status()

    def wait_actors(self, states: dict[str, str]) -> dict[str, int]:
        """Waits until actors are in these states. Returns pids by actor."""

        pids: dict[str, int] = {}

        def are() -> bool:
            if not self.answers():
                return False
            actors = self.status().actors
            pids.update((actor.name, actor.pid or 0) for actor in actors)
            return states.items() <= {actor.name: actor.state for actor in actors}.items()

        wait_until(f"actors are {states}", START_DEADLINE_S, are)
        return pids

    def wait_end(self, deadline_s: float) -> tuple[int, list[str]]:
        """Waits for the end. Returns the exit status and what was printed on standard error, by line."""
        _, stderr = self.process.communicate(timeout=deadline_s)
        return self.process.returncode, stderr.splitlines()

    def nothing_is_left(self) -> None:
        """Fails the test if a process or a socket of the daemon is left."""
        assert processes_of(self.directory) == []
        assert sockets_of(self.directory) == []


StartDaemon = Callable[..., FakeDaemon]


@pytest.fixture
def start_daemon(runtime_root: Path) -> Iterator[StartDaemon]:
    """Starts fake daemons and kills what a failed test leaves."""
    daemons: list[FakeDaemon] = []

    def start(
        behaviours: dict[str, str] | None = None,
        config: dict[str, Any] | None = None,
        arguments: list[str] | None = None,
        pass_fds: tuple[int, ...] = (),
        environment: dict[str, str] | None = None,
        activated: Sequence[socket.socket] = (),
        prefix: Sequence[str] = (),  # a command that runs the daemon's
    ) -> FakeDaemon:
        daemon = FakeDaemon(
            RunDir(runtime_root / "d"),
            behaviours or {},
            config or {},
            arguments or [],
            pass_fds,
            environment or {},
            activated,
            prefix,
        )
        daemons.append(daemon)
        return daemon

    yield start
    for daemon in daemons:
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.process.communicate()
        for pid in processes_of(daemon.directory):
            os.kill(pid, 9)
