"""The processes beside the worker, as they really run: small, without torch, and silent while idle."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from pillion.messages.control import DaemonStatus, StatusRequest
from pillion.runtime.config import EngineConfig
from pillion.runtime.control_socket import ControlClient
from pillion.runtime.daemon import locate_model
from pillion.runtime.paths import RunDir
from pillion.runtime.proc_files import cpu_seconds
from pillion.runtime.process import child_environment

DAEMON = Path(__file__).parent.parent / "ring" / "fake_worker_daemon.py"
SMALL = ("launcher", "kv_manager", "scheduler", "detokenizer", "gateway")
MAX_BYTES = 80 * 1000 * 1000
HEAVY_LIBRARIES = ("/torch/", "/transformers/", "/triton/")

pytestmark = pytest.mark.model


@pytest.fixture
def directory(smollm2_path: Path, runtime_root: Path) -> Iterator[RunDir]:
    """The run directory of a daemon of real processes on a real model's text, with a fake worker."""
    config = EngineConfig(model=str(smollm2_path), name="d", http="0")
    config = locate_model(config, progress=False)
    ready_fd, launcher_ready_fd = os.pipe()
    daemon = subprocess.Popen(
        [
            sys.executable,
            str(DAEMON),
            f"--config={config.to_json().decode()}",
            f"--ready-fd={launcher_ready_fd}",
        ],
        env=child_environment(),
        pass_fds=(launcher_ready_fd,),
    )
    os.close(launcher_ready_fd)
    with os.fdopen(ready_fd) as pipe:
        assert json.loads(pipe.readline()) == {"ready": True}
    yield RunDir(runtime_root / "d")
    daemon.terminate()
    assert daemon.wait(10) == 0


def status_of(directory: RunDir) -> DaemonStatus:
    client = ControlClient(directory)
    status = client.ask(StatusRequest())
    client.close()
    assert isinstance(status, DaemonStatus)
    return status


def test_they_are_small_without_torch_and_idle(directory: RunDir) -> None:
    actors = {actor.name: actor for actor in status_of(directory).actors}
    for name in SMALL:
        pid = actors[name].pid
        assert pid is not None
        mapped = Path(f"/proc/{pid}/maps").read_text()
        assert "python" in mapped
        assert [library for library in HEAVY_LIBRARIES if library in mapped] == []
    sizes = {name: actors[name].rss_bytes for name in SMALL}
    assert {name: size for name, size in sizes.items() if size > MAX_BYTES} == {}

    pids = [actor.pid for actor in actors.values() if actor.pid is not None]
    # The text edge reads its tokenizer after it is ready; that is not idleness yet.
    wait_until("start-up is over", 30, lambda: used_within(pids, 1.0) == 0)
    # 1 % of a core, and one tick of the kernel's clock.
    assert used_within(pids, 3.0) <= 0.03 + 0.01


def used_within(pids: list[int], seconds: float) -> float:
    """Processor time of these processes during that time."""
    before = sum(cpu_seconds(pid) for pid in pids)
    end = time.monotonic() + seconds
    wait_until(f"{seconds:g} s are over", seconds + 5, lambda: time.monotonic() > end)
    return sum(cpu_seconds(pid) for pid in pids) - before
