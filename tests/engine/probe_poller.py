"""Asks a daemon how it is, ten times a second, from a process of its own.

Usage: python probe_poller.py HTTP_SOCKET RUN_DIRECTORY SECONDS
Prints the seconds that each answer took as JSON: {"/health": [...], "/live": [...], "status": [...]}.
"""

import http.client
import json
import socket
import sys
import time
from pathlib import Path

from pillion.messages.control import StatusRequest
from pillion.runtime.control_socket import ControlClient
from pillion.runtime.paths import RunDir

PERIOD_S = 0.1


class UnixConnection(http.client.HTTPConnection):
    """HTTP at a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=20.0)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def probe(path: str, url: str) -> None:
    """A new connection each time, as a supervisor's probe has. Raises RuntimeError unless it says 200."""
    connection = UnixConnection(path)
    connection.request("GET", url)
    status = connection.getresponse().status
    connection.close()
    if status != 200:
        raise RuntimeError(f"{url} says {status}")


def ask_status(directory: Path) -> None:
    """As `pillion status` does."""
    client = ControlClient(RunDir(directory))
    client.ask(StatusRequest())
    client.close()


def main() -> None:
    """Polls and prints."""
    http_socket, directory, seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    asks = {
        "/health": lambda: probe(http_socket, "/health"),
        "/live": lambda: probe(http_socket, "/live"),
        "status": lambda: ask_status(directory),
    }
    took: dict[str, list[float]] = {name: [] for name in asks}
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        for name, ask in asks.items():
            began = time.perf_counter()
            ask()
            took[name].append(time.perf_counter() - began)
        time.sleep(max(0.0, start + PERIOD_S - time.perf_counter()))
    print(json.dumps(took))


if __name__ == "__main__":
    main()
