"""The gateway as a child of the launcher: found, refused, stopped, and gone with everything else."""

import os
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from waiting import wait_until

from .conftest import StartDaemon

STOP_DEADLINE_S = 20.0


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_daemon_shows_where_it_serves_http_and_leaves_nothing(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    path = tmp_path / "h.sock"
    daemon = start_daemon(config={"http": "0", "http_uds": str(path)})
    status = daemon.wait_state("ready")
    (gateway,) = (actor for actor in status.actors if actor.name == "gateway")
    assert gateway.gauges["http_uds"] == str(path)
    assert path.stat().st_mode & 0o777 == 0o660
    url = str(gateway.gauges["http"])
    assert url.startswith("http://127.0.0.1:")
    assert status_of(f"{url}/live") == 200
    # Nothing listens at the text edge's socket: its actor is a fake.
    assert status_of(f"{url}/ready") == 503
    daemon.process.terminate()
    assert daemon.wait_end(STOP_DEADLINE_S)[0] == 0
    daemon.nothing_is_left()
    assert not path.exists()


def test_a_taken_port_fails_the_start_with_its_reason(start_daemon: StartDaemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon = start_daemon(config={"http": str(port)})
        code, lines = daemon.wait_end(STOP_DEADLINE_S + 20)
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in lines[-1]
    assert "Address already in use" in lines[-1] or "address already in use" in lines[-1]
    daemon.nothing_is_left()


def test_after_sigkill_of_the_launcher_the_next_start_has_the_same_addresses(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    path = tmp_path / "h.sock"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = {"http": str(port), "http_uds": str(path)}
    first = start_daemon(config=config)
    first.wait_state("ready")
    first.process.kill()
    first.process.wait()
    second = start_daemon(config=config)
    second.wait_state("ready")
    assert status_of(f"http://127.0.0.1:{port}/live") == 200
    second.process.terminate()
    assert second.wait_end(STOP_DEADLINE_S)[0] == 0
    second.nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_gateway_that_is_killed_or_stopped_serves_again_at_the_same_addresses(
    start_daemon: StartDaemon, tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "h.sock"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    daemon = start_daemon(config={"http": str(port), "http_uds": str(path), "stall_limit_s": 1.0})
    daemon.wait_state("ready")
    pid = daemon.wait_actors({"gateway": "running"})["gateway"]
    os.kill(pid, number)
    wait_until(
        "a gateway lives again",
        10,
        lambda: daemon.wait_actors({"gateway": "running"})["gateway"] not in (pid, 0),
    )
    assert status_of(f"http://127.0.0.1:{port}/live") == 200
    assert path.is_socket()
    daemon.process.terminate()
    assert daemon.wait_end(STOP_DEADLINE_S)[0] == 0
    daemon.nothing_is_left()
    wait_until("the socket is gone", 1.0, lambda: not path.exists())
