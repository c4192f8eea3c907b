"""SIGTERM: new requests are refused at once, running ones finish in their time, and each stream hears its end."""

import asyncio
import time

import pytest
from http_client import HttpClient
from ring_daemon import END_DEADLINE_S, NAME, RingDaemon, StartRing, until

from pillion import AsyncClient, SamplingParams
from pillion.runtime.async_request_stream import AsyncRequestStream
from pillion.runtime.errors import RequestError

pytestmark = pytest.mark.model

NUM_STREAMS = 20


def params(max_tokens: int | None) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


async def begin(client: AsyncClient, max_tokens: int | None) -> list[AsyncRequestStream]:
    """Streams that all have had a first token."""
    streams = [
        await client.generate([number + 3], params(max_tokens), stream=True)
        for number in range(NUM_STREAMS)
    ]
    for stream in streams:
        await anext(stream)
    return streams


async def begin_http(daemon: RingDaemon) -> HttpClient:
    """The same over HTTP, without an end."""
    client = await HttpClient.connect(daemon.http)
    body = b'{"prompt": [5], "stream": true, "max_tokens": 90000, "ignore_eos": true}'
    client.send("POST", "/v1/completions", body)
    assert (await client.receive_head())[0] == 200
    await client.receive_chunk()
    return client


async def rest_of(client: HttpClient) -> str:
    """All that the stream still says."""
    parts = []
    while part := await client.receive_chunk():
        parts.append(part)
    return b"".join(parts).decode()


async def how_it_ends(stream: AsyncRequestStream) -> str:
    try:
        async for _ in stream:
            pass
    except RequestError as error:
        return f"{error.code}: {error}"
    return str(stream.output.outputs[0].finish_reason)


async def refused(client: AsyncClient) -> RequestError:
    """How a new request is refused, as soon as the text edge has heard of the end."""
    while True:
        try:
            await client.generate([1], params(1))
        except RequestError as refusal:
            return refusal


async def heard_of_the_end(http: HttpClient) -> None:
    """Until the gateway has heard of it."""
    while True:
        if (await http.ask("GET", "/ready")).status == 503:
            return


async def exit_status(daemon: RingDaemon) -> int:
    await until("the daemon has ended", lambda: daemon.process.poll() is not None)
    return int(daemon.process.returncode)


async def test_with_time_to_drain_everyone_finishes_and_nobody_new_begins(
    start_ring: StartRing,
) -> None:
    daemon = start_ring(drain_s=60.0)
    async with AsyncClient(NAME) as client, AsyncClient(NAME) as late:
        streams = await begin(client, max_tokens=1_000)
        daemon.terminate()
        refusal = await refused(late)
        assert (refusal.code, str(refusal)) == ("unavailable", "the daemon is stopping")
        http = await HttpClient.connect(daemon.http)
        await heard_of_the_end(http)
        answer = await http.ask("POST", "/v1/completions", {"prompt": [1]})
        assert (answer.status, "retry-after" in answer.headers) == (503, True)
        http.hang_up()
        ends = await asyncio.gather(*map(how_it_ends, streams))
        assert ends == ["length"] * NUM_STREAMS
        assert {len(stream.output.outputs[0].token_ids) for stream in streams} == {1_000}
    assert await exit_status(daemon) == 0


@pytest.mark.parametrize("signals", [1, 2], ids=["no time to drain", "a second signal"])
async def test_at_once_each_stream_hears_its_end(start_ring: StartRing, signals: int) -> None:
    daemon = start_ring(drain_s=0.0 if signals == 1 else 60.0)
    async with AsyncClient(NAME) as client:
        streams = await begin(client, max_tokens=None)
        http = await begin_http(daemon)
        daemon.terminate()
        if signals == 2:
            await until("it drains", lambda: daemon.status().state == "draining")
            daemon.terminate()
        ends = await asyncio.wait_for(asyncio.gather(*map(how_it_ends, streams)), END_DEADLINE_S)
        assert ends == ["unavailable: the daemon is stopping"] * NUM_STREAMS
        assert '"the daemon is stopping"' in await rest_of(http)
        http.hang_up()
    assert await exit_status(daemon) == 0


async def test_the_drain_ends_at_its_limit_with_an_error_for_what_still_runs(
    start_ring: StartRing,
) -> None:
    daemon = start_ring(drain_s=1.0)
    async with AsyncClient(NAME) as client:
        short = await client.generate([2], params(50), stream=True)
        streams = await begin(client, max_tokens=None)
        start = time.perf_counter()
        daemon.terminate()
        ends = await asyncio.gather(*map(how_it_ends, streams))
        assert 1.0 <= time.perf_counter() - start < 20.0
        assert ends == ["unavailable: the daemon is stopping"] * NUM_STREAMS
        assert await how_it_ends(short) == "length"
    assert await exit_status(daemon) == 0
