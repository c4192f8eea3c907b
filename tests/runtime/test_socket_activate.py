"""Socket activation by systemd's own tool. Skipped where it is missing."""

import shutil
import socket
from pathlib import Path

import pytest
from waiting import wait_until

from pillion.runtime.process import child_environment

from .conftest import START_DEADLINE_S, StartDaemon

ACTIVATE = "systemd-socket-activate"
PROBE = b"GET /live HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n"
DEADLINE_S = 20.0

pytestmark = pytest.mark.skipif(shutil.which(ACTIVATE) is None, reason=f"needs {ACTIVATE}")


def test_the_first_connection_starts_the_daemon_and_is_answered(
    start_daemon: StartDaemon, runtime_root: Path
) -> None:
    path = str(runtime_root / "h.sock")
    # It hands on hardly any variable by itself.
    variables = [f"--setenv={name}" for name in child_environment()]
    daemon = start_daemon(prefix=[ACTIVATE, f"--listen={path}", "--fdname=web", *variables])
    wait_until("it has bound its socket", DEADLINE_S, Path(path).is_socket)
    assert not daemon.answers()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(START_DEADLINE_S)
        wait_until("it listens", DEADLINE_S, lambda: client.connect_ex(path) == 0)
        client.sendall(PROBE)
        assert client.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
    status = daemon.wait_state("ready")
    assert status.pid == daemon.process.pid
    daemon.process.terminate()
    code, _ = daemon.wait_end(DEADLINE_S)
    assert code == 0
    daemon.nothing_is_left()
