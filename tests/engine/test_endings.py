"""However a daemon with the real worker ends, nothing of it is left five seconds later."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pillion import Client, SamplingParams
from pillion.runtime.errors import DaemonUnavailable, PillionError, RequestError

pytestmark = pytest.mark.model

START_DEADLINE_S = 120.0
GONE_DEADLINE_S = 5.0
SLACK_S = 1.0  # of a machine that does other things


class Daemon:
    """`pillion serve` in the foreground, as a person starts it."""

    def __init__(self, model: Path, root: Path, *arguments: str) -> None:
        self.directory = root / "ending"
        command = [sys.executable, "-P", "-m", "pillion", "serve", str(model), "--name", "ending"]
        command += ["--cpu-threads", "1", "--kv-cache-bytes", str(64 << 20)]
        self.process = subprocess.Popen(
            [*command, "--max-model-len", "1024", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PILLION_RUNTIME_DIR": str(root)},
            start_new_session=True,
        )

    def actors(self) -> list[psutil.Process]:
        """Every process of this daemon but the launcher."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if any(word == f"--run-dir={self.directory}" for word in words):
                found.append(process)
        return found

    def wait(self, what: str, holds: Callable[[], bool], deadline_s: float) -> None:
        deadline = time.monotonic() + deadline_s
        while not holds():
            assert time.monotonic() < deadline, f"{what} within {deadline_s:g} s"
            time.sleep(0.02)

    def wait_loading(self) -> None:
        """The worker's process is there and not ready."""
        self.wait("actors", lambda: len(self.actors()) >= 4, START_DEADLINE_S)

    def wait_ready(self) -> None:
        """A token has been made."""

        def answers() -> bool:
            try:
                with Client("ending") as client:
                    client.generate([1], SamplingParams(max_tokens=1))
            except (PillionError, OSError):
                return False
            return True

        self.wait("an answer", answers, START_DEADLINE_S)

    def nothing_is_left(self) -> None:
        def gone() -> bool:
            sockets = [*self.directory.glob("*.sock"), *self.directory.glob("*.ipc")]
            is_killed = self.process.returncode == -signal.SIGKILL
            return not self.actors() and (is_killed or not sockets)

        self.process.wait(30.0)
        self.wait("nothing is left", gone, GONE_DEADLINE_S)


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("PILLION_RUNTIME_DIR", str(root))
    return root


@pytest.fixture
def daemon(smollm2_path: Path, root: Path) -> Daemon:
    return Daemon(smollm2_path, root)


def test_interrupt_while_loading(daemon: Daemon) -> None:
    daemon.wait_loading()
    os.killpg(daemon.process.pid, signal.SIGINT)
    daemon.process.wait(GONE_DEADLINE_S)
    daemon.nothing_is_left()


def test_a_second_interrupt_while_loading_ends_at_once(daemon: Daemon) -> None:
    daemon.wait_loading()
    os.killpg(daemon.process.pid, signal.SIGINT)
    os.killpg(daemon.process.pid, signal.SIGINT)
    daemon.process.wait(1.0 + SLACK_S)
    daemon.nothing_is_left()


def test_kill_while_loading(daemon: Daemon) -> None:
    daemon.wait_loading()
    daemon.process.kill()
    daemon.nothing_is_left()


def test_stop_lets_streams_finish(daemon: Daemon) -> None:
    daemon.wait_ready()
    with Client("ending") as client:
        params = SamplingParams(max_tokens=40, ignore_eos=True)
        stream = client.generate([1, 2, 3], params, stream=True)
        next(stream)
        daemon.process.send_signal(signal.SIGTERM)
        num_tokens = 1 + sum(len(new.outputs[0].token_ids) for new in stream)
    assert num_tokens == 40
    assert daemon.process.wait(30.0) == 0
    daemon.nothing_is_left()


def test_kill_under_load_and_start_again(daemon: Daemon, smollm2_path: Path) -> None:
    daemon.wait_ready()
    with Client("ending") as client:
        params = SamplingParams(max_tokens=None, ignore_eos=True)
        streams = [client.generate([5, n], params, stream=True) for n in range(3)]
        for stream in streams:
            next(stream)
        daemon.process.kill()
        for stream in streams:
            with pytest.raises((DaemonUnavailable, RequestError)):
                for _ in stream:
                    pass
    daemon.nothing_is_left()
    again = Daemon(smollm2_path, daemon.directory.parent)
    again.wait_ready()
    again.process.send_signal(signal.SIGTERM)
    assert again.process.wait(30.0) == 0
    again.nothing_is_left()


def test_without_restarts_a_killed_worker_ends_the_daemon_with_its_cause(
    smollm2_path: Path, root: Path
) -> None:
    daemon = Daemon(smollm2_path, root, "--max-restarts", "0")
    daemon.wait_ready()
    with Client("ending") as client:
        params = SamplingParams(max_tokens=None, ignore_eos=True)
        stream = client.generate([5], params, stream=True)
        next(stream)
        (worker,) = [p for p in daemon.actors() if any("gpu_worker" in w for w in p.cmdline())]
        worker.kill()
        with pytest.raises((DaemonUnavailable, RequestError)):
            for _ in stream:
                pass
    assert daemon.process.wait(30.0) != 0
    last = (daemon.directory / "daemon.log").read_text().strip().splitlines()[-1]
    assert "gpu_worker" in last
    assert "SIGKILL" in last
    daemon.nothing_is_left()
