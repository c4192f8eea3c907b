"""A daemon as a service manager runs it: told of every change, with sockets that outlive every process."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from waiting import wait_until

from pillion.runtime.service_variables import SERVICE_VARIABLES

from .conftest import START_DEADLINE_S, FakeDaemon, StartDaemon, processes_of

STOP_DEADLINE_S = 20.0
PROBE = b"GET /live HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n"


@dataclass
class Manager:
    """The service manager's end of NOTIFY_SOCKET."""

    path: str
    heard: list[str] = field(default_factory=list)  # line by line

    def listen(self, listening: socket.socket) -> None:
        """Reads until an empty datagram comes, at once, as the kernel keeps only a few."""
        while datagram := listening.recv(4096):
            self.heard += datagram.decode().splitlines()

    def close(self, listener: threading.Thread) -> None:
        """Ends the reading; everything that was sent before is heard."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", self.path)
        listener.join()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        manager = Manager(path)
        listener = threading.Thread(target=manager.listen, args=(listening,))
        listener.start()
        yield manager
        manager.close(listener)


def environment_of(pid: int) -> set[str]:
    data = Path(f"/proc/{pid}/environ").read_bytes()
    return {entry.partition(b"=")[0].decode() for entry in data.split(b"\0")}


def answer_on(connection: socket.socket) -> bytes:
    """The status line of a probe that was sent, however long ago."""
    connection.settimeout(STOP_DEADLINE_S)
    with connection:
        return connection.recv(4096).partition(b"\r\n")[0]


def ask(address: str | tuple[str, int]) -> socket.socket:
    """Sends a probe, which the backlog takes whether or not somebody accepts."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    connection = socket.socket(family)
    connection.connect(address)
    connection.sendall(PROBE)
    return connection


def test_the_manager_hears_of_the_start_signs_of_life_and_the_end(
    start_daemon: StartDaemon, manager: Manager
) -> None:
    daemon = start_daemon(
        environment={"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "200000"},
    )
    daemon.wait_state("ready")
    wait_until("it is told", 5, lambda: "STATUS=serving fake" in manager.heard)
    told = [line for line in manager.heard if line != "WATCHDOG=1"]
    assert told[0] == "STATUS=starting fake"
    # The daemon's own limits are what counts: start_timeout_s and drain_s, each with what the end takes.
    assert told[1] == "EXTEND_TIMEOUT_USEC=605000000"
    assert told.count("READY=1") == 1
    assert told.index("READY=1") < told.index("STATUS=serving fake")
    assert "STOPPING=1" not in told
    so_far = len(manager.heard)
    wait_until("it lives", 5, lambda: manager.heard[so_far:].count("WATCHDOG=1") >= 3)
    for pid in processes_of(daemon.directory):
        assert environment_of(pid).isdisjoint(SERVICE_VARIABLES)
    daemon.process.terminate()
    assert daemon.wait_end(STOP_DEADLINE_S)[0] == 0
    wait_until("the end is told", 5, lambda: "STATUS=stopping: SIGTERM" in manager.heard)
    end = manager.heard[manager.heard.index("STOPPING=1") :]
    assert "STATUS=SIGTERM: draining for at most 5 s" in end
    assert "EXTEND_TIMEOUT_USEC=10000000" in end
    assert "READY=1" not in end


def test_a_recovery_and_a_failure_are_told_and_a_failed_daemon_gives_no_sign_of_life(
    start_daemon: StartDaemon, manager: Manager
) -> None:
    daemon = start_daemon(
        config={"max_restarts": 1},
        environment={"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "20000"},
    )
    daemon.wait_state("ready")
    pid = daemon.wait_actors({"kv_manager": "running"})["kv_manager"]
    os.kill(pid, signal.SIGKILL)
    recovering = f"STATUS=recovering kv_manager: kv_manager (pid {pid}) was killed by SIGKILL"
    wait_until("it is told", 5, lambda: recovering in manager.heard)
    wait_until(
        "it is told again",
        START_DEADLINE_S,
        lambda: "STATUS=serving fake" in manager.heard[manager.heard.index(recovering) :],
    )
    os.kill(daemon.wait_actors({"kv_manager": "running"})["kv_manager"], signal.SIGKILL)
    assert daemon.wait_end(STOP_DEADLINE_S)[0] == 1
    wait_until("the end is told", 5, lambda: "STOPPING=1" in manager.heard)
    end = manager.heard[manager.heard.index("STOPPING=1") :]
    assert end[1].startswith("STATUS=failed: kv_manager")
    assert "WATCHDOG=1" not in end
    assert manager.heard.count("READY=1") == 1


def test_connections_wait_through_the_start_and_every_restart_of_the_gateway(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    path = str(tmp_path / "h.sock")
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(path)
        unix.listen()
        address = tcp.getsockname()
        early = [ask(address), ask(path)]
        daemon = start_daemon(activated=[tcp, unix])
        assert [answer_on(one) for one in early] == [b"HTTP/1.1 200 OK"] * 2
        daemon.wait_state("ready")
        pid = daemon.wait_actors({"gateway": "running"})["gateway"]
        os.kill(pid, signal.SIGKILL)
        wait_until("it is dead", 5, lambda: pid not in processes_of(daemon.directory))
        meanwhile = [ask(address), ask(path)]
        assert [answer_on(one) for one in meanwhile] == [b"HTTP/1.1 200 OK"] * 2
        assert daemon.wait_actors({"gateway": "running"})["gateway"] != pid
        wait_until("it shows where", 5, lambda: "http_uds" in gateway_gauges(daemon))
        assert gateway_gauges(daemon)["http"] == f"http://127.0.0.1:{address[1]}"
        assert gateway_gauges(daemon)["http_uds"] == path
        others = [one.pid for one in daemon.status().actors[1:] if one.name != "gateway"]
        assert all(unix_inode(unix) not in inodes_of(other) for other in others if other)
        daemon.process.terminate()
        assert daemon.wait_end(STOP_DEADLINE_S)[0] == 0
        daemon.nothing_is_left()
        # Whoever bound them still listens, for the daemon's next start.
        for one in (ask(address), ask(path)):
            one.close()


def gateway_gauges(daemon: FakeDaemon) -> dict[str, int | float | str]:
    (gateway,) = (one for one in daemon.status().actors if one.name == "gateway")
    return gateway.gauges


def unix_inode(listening: socket.socket) -> str:
    return os.readlink(f"/proc/self/fd/{listening.fileno()}")


def inodes_of(pid: int) -> set[str]:
    folder = Path(f"/proc/{pid}/fd")
    return {os.readlink(entry) for entry in folder.iterdir()}


def test_a_socket_that_does_not_listen_ends_the_start_with_its_reason(
    start_daemon: StartDaemon,
) -> None:
    with socket.socket() as idle:
        code, lines = start_daemon(activated=[idle]).wait_end(STOP_DEADLINE_S)
    assert code == 1
    assert lines[-1].startswith("error: the inherited descriptor 3 (http) does not listen")
