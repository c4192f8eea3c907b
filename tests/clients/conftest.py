"""One daemon with the small real model and its gateway, for every client library."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pillion.messages.control import StatusRequest
from pillion.runtime.config import DtypeName, EngineConfig
from pillion.runtime.control_socket import ControlClient
from pillion.runtime.daemon import locate_model
from pillion.runtime.paths import RunDir
from pillion.runtime.process import child_environment

START_DEADLINE_S = 240.0
STOP_DEADLINE_S = 20.0
KEY = "the-key"


@dataclass(frozen=True)
class Served:
    """Where the gateway is."""

    url: str
    socket: Path
    directory: RunDir
    key: str = KEY


@pytest.fixture(scope="session")
def served(smollm2_path: Path) -> Iterator[Served]:
    """A daemon that serves HTTP over TCP and a Unix socket, with an API key."""
    with serving(smollm2_path) as found:
        yield found


@contextlib.contextmanager
def serving(model: Path, dtype: DtypeName = "auto") -> Iterator[Served]:
    """Such a daemon."""
    root = Path(tempfile.mkdtemp(prefix="pillion-", dir="/tmp"))
    config = EngineConfig(
        model=str(model),
        dtype=dtype,
        served_model_name="smollm2",
        name="c",
        cpu_threads=1,  # two would wait for each other where other work takes a core
        max_num_seqs=4,
        max_model_len=1024,
        num_kv_blocks=256,
        http="0",
        http_uds=str(root / "h.sock"),
        api_key=KEY,
    )
    lifetime_fd, our_lifetime_fd = os.pipe()
    our_ready_fd, ready_fd = os.pipe()
    daemon = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "pillion.runtime.daemon",
            f"--config={locate_model(config, progress=False).to_json().decode()}",
            f"--lifetime-fd={lifetime_fd}",
            f"--ready-fd={ready_fd}",
        ],
        pass_fds=(lifetime_fd, ready_fd),
        env=child_environment() | {"PILLION_RUNTIME_DIR": str(root)},
    )
    os.close(lifetime_fd)
    os.close(ready_fd)
    try:
        with open(our_ready_fd) as outcome:
            assert select.select([outcome], [], [], START_DEADLINE_S)[0], "the daemon's word"
            assert json.loads(outcome.readline()) == {"ready": True}
        directory = RunDir(root / "c")
        yield Served(_url(directory), root / "h.sock", directory)
    finally:
        os.close(our_lifetime_fd)
        assert daemon.wait(STOP_DEADLINE_S) == 0
        assert not (root / "h.sock").exists()
        shutil.rmtree(root)


def _url(directory: RunDir) -> str:
    client = ControlClient(directory)
    status = client.ask(StatusRequest())
    client.close()
    (gateway,) = (actor for actor in status.actors if actor.name == "gateway")  # type: ignore[union-attr]
    return str(gateway.gauges["http"])
