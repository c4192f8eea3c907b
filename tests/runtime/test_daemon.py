"""Starting daemons from another process, which may go away."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from waiting import wait_until

from pillion.runtime import daemon as daemon_module
from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import DaemonProcess, locate_model, start_daemon
from pillion.runtime.errors import ModelError, PillionError
from pillion.runtime.launch_report import LaunchRefused, LaunchReport
from pillion.runtime.paths import RunDir, daemon_pid
from pillion.runtime.process import child_environment

from .conftest import FAKE_DAEMON, processes_of


@pytest.fixture
def fake_actors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The interpreter's stand-in: it runs the fake daemon with what the file `behaviours` says."""
    behaviours = tmp_path / "behaviours"
    behaviours.write_text("{}")
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nshift 3\nexec "{sys.executable}" "{FAKE_DAEMON}" "$(cat {behaviours})" "$@"\n'
    )
    python.chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setattr(daemon_module, "sys", SimpleNamespace(executable=str(python)))
        yield behaviours


CONFIG = EngineConfig(model="fake", name="d")


def test_a_daemon_is_ready_when_it_says_so_and_stops(fake_actors: Path, runtime_root: Path) -> None:
    daemon = start_daemon(CONFIG)
    daemon.wait_ready(30)
    assert daemon_pid(daemon.directory) == daemon.pid
    daemon.stop()
    daemon.close()
    assert daemon_pid(daemon.directory) is None
    assert processes_of(daemon.directory) == []
    assert daemon.directory.log.exists()


def test_a_private_daemon_leaves_no_directory(fake_actors: Path, runtime_root: Path) -> None:
    daemon = start_daemon(CONFIG, private=True)
    daemon.wait_ready(30)
    daemon.stop()
    daemon.close()
    assert list(runtime_root.iterdir()) == []


def test_a_start_that_fails_tells_its_cause_and_keeps_the_log(
    fake_actors: Path, runtime_root: Path
) -> None:
    fake_actors.write_text('{"gpu_worker": "raise_at_start"}')
    daemon = start_daemon(CONFIG, private=True)
    with pytest.raises(
        PillionError, match=r"gpu_worker \(pid \d+\) .*ValueError: weights are missing"
    ):
        daemon.wait_ready(30)
    daemon.stop()
    daemon.close()
    assert "Traceback" in daemon.directory.log.read_text()


def test_waiting_has_a_deadline(fake_actors: Path, runtime_root: Path) -> None:
    fake_actors.write_text('{"gpu_worker": "load_for_ever"}')
    daemon = start_daemon(CONFIG)
    with pytest.raises(PillionError, match=r"'d' is not ready after 0.1 s"):
        daemon.wait_ready(0.1)
    daemon.stop()
    with pytest.raises(PillionError, match=r"stopped before it was ready|without a word"):
        daemon.wait_ready(1)
    daemon.close()


@pytest.mark.parametrize("text", [None, "\n"])
def test_a_file_without_keys_is_refused_before_anything_starts(
    fake_actors: Path, runtime_root: Path, tmp_path: Path, text: str | None
) -> None:
    keys = tmp_path / "keys"
    if text is not None:
        keys.write_text(text)
    daemon = start_daemon(replace(CONFIG, http="0", api_key_file=str(keys)))
    with pytest.raises(LaunchRefused, match=f"api_key_file {keys}"):
        daemon.wait_ready(30)
    daemon.stop()
    daemon.close()
    assert list(runtime_root.iterdir()) == []


def test_a_launcher_that_dies_without_a_word(runtime_root: Path) -> None:
    ready_fd, other = os.pipe()
    os.close(other)
    process = subprocess.Popen([sys.executable, "-c", ""])
    daemon = DaemonProcess(RunDir(runtime_root / "d"), process, ready_fd, None)
    with pytest.raises(PillionError, match=r"without a word: see .*daemon\.log"):
        daemon.wait_ready(5)
    daemon.stop()
    daemon.close()


def test_a_private_daemon_ends_with_its_killed_parent(
    runtime_root: Path, fake_actors: Path
) -> None:
    script = (
        "import sys\n"
        "from pillion.runtime import daemon\n"
        "from pillion.runtime.config import EngineConfig\n"
        "daemon.sys.executable = sys.argv[1]\n"
        "started = daemon.start_daemon(EngineConfig(model='fake', name='d'), private=True)\n"
        "started.wait_ready(30)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, daemon_module.sys.executable],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
        text=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    directory = RunDir(runtime_root / "d")
    assert len(processes_of(directory)) == 4
    parent.kill()
    parent.communicate()
    wait_until("nothing is left", 5, lambda: list(runtime_root.iterdir()) == [])
    assert processes_of(directory) == []


def test_the_model_is_located_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        locate_model(EngineConfig(model=str(tmp_path / "missing.gguf")), progress=False)
    (tmp_path / "m.gguf").write_bytes(b"GGUF\3\0\0\0" + bytes(16))
    config = locate_model(EngineConfig(model=str(tmp_path / "m.gguf")), progress=False)
    assert config.model_path == str(tmp_path / "m.gguf")
    assert config.served_model_name == "m"
    named = EngineConfig(model=str(tmp_path / "m.gguf"), served_model_name="mine")
    assert locate_model(named, progress=False).served_model_name == "mine"


def test_a_report_is_written_once_and_survives_a_deaf_reader() -> None:
    reading, writing = os.pipe()
    report = LaunchReport(writing)
    report.ready()
    report.failed("too late")
    with os.fdopen(reading) as pipe:
        assert pipe.read() == '{"ready":true}\n'
    reading, writing = os.pipe()
    os.close(reading)
    LaunchReport(writing).failed("nobody listens")
    LaunchReport(None).ready()
