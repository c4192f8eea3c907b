"""However a client leaves, and whatever it had asked for, its place is free at once and nothing runs on for it."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

import pytest
from http_client import HttpClient
from ring_daemon import NAME, RingDaemon, StartRing, until

from pillion import AsyncClient, SamplingParams
from pillion.runtime.process import child_environment

pytestmark = pytest.mark.model

ENDLESS = {"temperature": 0.0, "max_tokens": None, "ignore_eos": True}
# A request that asks for all at once waits for its whole answer: nothing of it is ever sent.
WHOLE_ANSWER = f"""
import sys
from pillion import Client, SamplingParams
Client(sys.argv[1]).generate([int(sys.argv[2])], SamplingParams(**{ENDLESS}))
"""

Leave = Callable[[], Awaitable[None]]
Open = Callable[[RingDaemon, int], Awaitable[Leave]]


async def client_stream(daemon: RingDaemon, number: int) -> Leave:
    """A stream of the client library is closed."""
    client = AsyncClient(NAME)
    stream = await client.generate([number], SamplingParams(**ENDLESS), stream=True)  # type: ignore[arg-type]
    await anext(stream)

    async def leave() -> None:
        stream.close()
        await client.close()

    return leave


async def client_killed(daemon: RingDaemon, number: int) -> Leave:
    """A process that waits for a whole answer is killed."""
    environment = {**child_environment(), "PILLION_RUNTIME_DIR": str(daemon.directory.root.parent)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WHOLE_ANSWER, NAME, str(number), env=environment
    )

    async def leave() -> None:
        process.kill()
        await process.wait()

    return leave


async def http_request(connection: HttpClient, number: int, stream: bool) -> Leave:
    body = {**ENDLESS, "prompt": [number], "stream": stream, "max_tokens": 90_000}
    headers = {"content-type": "application/json"}
    connection.send("POST", "/v1/completions", json.dumps(body).encode(), headers)
    if stream:
        await connection.receive_head()
        await connection.receive_chunk()

    async def leave() -> None:
        connection.hang_up()

    return leave


async def http_stream(daemon: RingDaemon, number: int) -> Leave:
    """A stream over HTTP is left, at a Unix socket."""
    return await http_request(await HttpClient.connect(daemon.http), number, stream=True)


async def http_whole(daemon: RingDaemon, number: int) -> Leave:
    """A whole answer over HTTP is not waited for, at a Unix socket."""
    return await http_request(await HttpClient.connect(daemon.http), number, stream=False)


async def tcp_whole(daemon: RingDaemon, number: int) -> Leave:
    """The same over TCP."""
    host, port = str(daemon.actors()["gateway"].gauges["http"]).removeprefix("http://").split(":")
    connection = HttpClient(*await asyncio.open_connection(host, int(port)))
    return await http_request(connection, number, stream=False)


def num_log_lines(daemon: RingDaemon) -> int:
    return len((daemon.directory.log).read_text().splitlines())


async def test_whoever_leaves_makes_room_at_once(start_ring: StartRing) -> None:
    daemon = start_ring(max_num_seqs=2, http="127.0.0.1:0")
    quick = SamplingParams(temperature=0.0, max_tokens=1)
    ways: list[Open] = [client_stream, client_killed, http_stream, http_whole, tcp_whole]
    async with AsyncClient(NAME) as client:
        for number, way in enumerate(ways):
            leaves = [await way(daemon, 10 + 2 * number + place) for place in range(2)]
            await until(
                f"two run: {way.__doc__}",
                lambda: daemon.actors()["scheduler"].gauges["running"] == 2,
            )
            lines = num_log_lines(daemon)
            for leave in leaves:
                await leave()
            # Two steps of 0.3 ms are enough; the rest is for two busy cores.
            await asyncio.wait_for(client.generate([7], quick), 2.0)
            await until("nothing is left", daemon.is_at_rest)
            assert num_log_lines(daemon) - lines <= 2, "a line for each that left, at most"
    counters = daemon.actors()["detokenizer"].counters
    outcomes = ("finished", "aborted", "timeout", "failed", "refused")
    ended = {outcome: counters[f"requests_{outcome}"] for outcome in outcomes}
    assert ended == {"finished": 5, "aborted": 10, "timeout": 0, "failed": 0, "refused": 0}
    assert counters["requests_received"] == sum(ended.values())
