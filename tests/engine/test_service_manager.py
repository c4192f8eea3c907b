"""`pillion serve` with the real worker as a service: it says ready, answers on a socket that it inherits, and stops."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pillion.runtime.process import child_environment

ACTIVATE = Path(__file__).parents[1] / "runtime" / "activate.py"
START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 20.0

pytestmark = pytest.mark.model


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{tmp_path}")
        listening.settimeout(START_DEADLINE_S)
        yield listening


def hear(manager: socket.socket, word: str) -> None:
    """Reads what comes until this word has come."""
    while word not in manager.recv(4096).decode().splitlines():
        pass


def serve(model: Path, root: Path, notify: str, listening: socket.socket) -> subprocess.Popen[str]:
    command = [sys.executable, str(ACTIVATE), str(listening.fileno()), "http"]
    command += [sys.executable, "-P", "-m", "pillion", "serve", str(model), "--device", "cpu"]
    command += ["--max-num-seqs", "2", "--num-kv-blocks", "32", "--max-num-batched-tokens", "64"]
    environment = {"NOTIFY_SOCKET": notify, "PILLION_RUNTIME_DIR": str(root)}
    return subprocess.Popen(
        command,
        env={**child_environment(), **environment},
        pass_fds=(listening.fileno(),),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_service_says_ready_answers_and_stops(
    smollm2_path: Path, tmp_path: Path, manager: socket.socket
) -> None:
    path = str(tmp_path / "h")
    body = json.dumps({"prompt": "One, two,", "max_tokens": 3, "temperature": 0}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-length: {len(body)}\r\n"
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
        listening.bind(path)
        listening.listen()
        daemon = serve(smollm2_path, tmp_path, f"@{tmp_path}", listening)
        try:
            hear(manager, "READY=1")
            client.settimeout(START_DEADLINE_S)
            client.connect(path)
            client.sendall(f"{head}connection: close\r\n\r\n".encode() + body)
            answer = b"".join(iter(lambda: client.recv(65536), b""))
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n"), answer
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"]
            daemon.terminate()
            hear(manager, "STOPPING=1")
            assert daemon.wait(STOP_DEADLINE_S) == 0
            assert os.path.exists(path)  # who bound it removes it
        finally:
            daemon.kill()
            daemon.communicate()
