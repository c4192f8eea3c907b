"""Connections that want nothing take places from those that do: up to a limit, and never the daemon's own."""

import asyncio
import resource
import socket

import pytest
from http_client import HttpClient
from ring_daemon import RingDaemon, StartRing

from pillion.actors.detokenizer.client_sessions import MAX_SESSIONS
from pillion.runtime.client import Client
from pillion.runtime.errors import PillionError
from pillion.runtime.greeting import hello_frame
from pillion.runtime.open_files import LEAST_OPEN_FILES

COMPLETION = {"prompt": "word", "max_tokens": 2}
FEW_FILES = ("sh", "-c", f'ulimit -n {LEAST_OPEN_FILES}; exec "$@"', "sh")


@pytest.fixture(autouse=True)
def _many_files() -> None:
    """This process holds the crowd."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def completion(daemon: RingDaemon) -> int:
    client = await HttpClient.connect(daemon.http)
    try:
        return (await client.ask("POST", "/v1/completions", COMPLETION)).status
    except (ConnectionError, asyncio.IncompleteReadError):
        return 0
    finally:
        client.hang_up()


def crowd_of_clients(daemon: RingDaemon, count: int) -> list[socket.socket]:
    """Clients that have introduced themselves and ask nothing."""
    crowd = []
    for _ in range(count):
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(daemon.directory.client_socket))
        client.sendall(hello_frame("idle", ""))
        crowd.append(client)
    for client in crowd:
        client.settimeout(20)
        try:
            client.recv(1)
        except ConnectionResetError:
            pass  # it has no place
    return crowd


@pytest.mark.model
async def test_clients_that_take_all_places_do_not_shut_the_gateway_out(
    start_ring: StartRing,
) -> None:
    daemon = start_ring()
    crowd = await asyncio.to_thread(crowd_of_clients, daemon, MAX_SESSIONS)
    with pytest.raises(PillionError, match="clients are connected"):
        await asyncio.to_thread(lambda: Client(str(daemon.directory.client_socket)).generate("a"))
    assert await completion(daemon) == 200
    for client in crowd:
        client.close()


@pytest.mark.model
async def test_few_open_files_are_shared_out(start_ring: StartRing) -> None:
    """More clients of each kind than a process may have files open: nobody who has a place loses it."""
    daemon = start_ring(prefix=FEW_FILES)
    assert await completion(daemon) == 200
    served = await HttpClient.connect(daemon.http)
    assert (await served.ask("GET", "/ready")).status == 200
    crowd = await asyncio.to_thread(crowd_of_clients, daemon, 2 * LEAST_OPEN_FILES)
    browsers = [await HttpClient.connect(daemon.http) for _ in range(LEAST_OPEN_FILES // 2 + 5)]
    refused = await browsers[-1].ask("GET", "/ready")
    assert (refused.status, refused.error["code"]) == (503, "overloaded")
    browsers += [await HttpClient.connect(daemon.http) for _ in range(LEAST_OPEN_FILES)]
    for _ in range(3):
        assert (await served.ask("POST", "/v1/completions", COMPLETION)).status == 200
        assert (await served.ask("GET", "/metrics")).status == 200
    assert daemon.status().state == "ready"
    for client in crowd:
        client.close()
    for browser in browsers:
        browser.hang_up()
    async with asyncio.timeout(20):
        while await completion(daemon) != 200:
            pass  # not all have been seen to leave
    served.hang_up()
    assert all(actor.restarts == {} for actor in daemon.actors().values())
