"""Clients of several daemons that serve the same: they go on at another one when theirs ends."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_text_edge import DEADLINE_S, FakeTextEdge

from pillion.runtime.client import AsyncClient, Client
from pillion.runtime.errors import DaemonUnavailable, InvalidRequest

PROMPT = "one two three four five"
NAMES = ("first", "second")


@pytest.fixture
def edges(runtime_root: Path) -> Iterator[list[FakeTextEdge]]:
    edges = []
    for name in NAMES:
        (runtime_root / name).mkdir()
        edges.append(FakeTextEdge(runtime_root / name / "client.sock"))
    yield edges
    for edge in edges:
        edge.stop()


def test_the_first_that_answers_is_used(edges: list[FakeTextEdge]) -> None:
    first, second = edges
    with Client(NAMES) as client:
        client.generate(PROMPT)
        first.stop()
        assert client.generate(PROMPT).outputs[0].text == PROMPT + " "
        assert client.generate(PROMPT).outputs[0].text == PROMPT + " "
    with Client(NAMES) as client:
        client.generate(PROMPT)
    assert (len(first.requests), len(second.requests)) == (1, 3)


def test_without_any_of_them_nobody_waits(edges: list[FakeTextEdge]) -> None:
    for edge in edges:
        edge.stop()
    with pytest.raises(DaemonUnavailable, match="'second'"):
        Client(NAMES)
    with pytest.raises(InvalidRequest, match="empty list"):
        Client([])


def test_a_stream_goes_on_at_the_next_one(edges: list[FakeTextEdge]) -> None:
    first, second = edges
    with Client(NAMES) as client, ThreadPoolExecutor(1) as pool:
        stream = client.generate("NEVER", stream=True)
        next(stream)
        first.stop()
        rest = pool.submit(next, stream)
        second.wait("the stream", lambda: len(second.requests) == 1)
        resume = second.requests[0].resume
        assert resume is not None
        assert resume.samples[0].num_chars == 6
        client.close()
        with pytest.raises(DaemonUnavailable, match="the client was closed"):
            rest.result(DEADLINE_S)


def test_what_a_daemon_that_ends_lets_finish_stays_there(edges: list[FakeTextEdge]) -> None:
    first, second = edges
    with Client(NAMES) as client, ThreadPoolExecutor(1) as pool:
        stream = client.generate("NEVER", stream=True)
        next(stream)
        first.refuses = True
        assert client.generate(PROMPT).outputs[0].text == PROMPT + " "
        outputs = client.generate(["a", "b"])
        assert [output.outputs[0].text for output in outputs] == ["a ", "b "]
        assert len(first.requests) == 2, "of the stream, and one that was refused"
        assert first.requests[0].client_request_id not in first.cancelled
        assert len(second.hellos) == 1
        first.drain()
        rest = pool.submit(next, stream)
        second.wait("the stream", lambda: len(second.requests) == 4)
        resume = second.requests[-1].resume
        assert resume is not None
        assert resume.samples[0].num_chars == 6
        client.close()
        with pytest.raises(DaemonUnavailable, match="the client was closed"):
            rest.result(DEADLINE_S)


def test_round_and_round(edges: list[FakeTextEdge]) -> None:
    """Each daemon is replaced in turn, as in a rolling restart."""
    with Client(NAMES) as client:
        for number in range(4):
            ending = edges[number % 2]
            ending.drain()
            assert client.generate(PROMPT).outputs[0].text == PROMPT + " "
            ending.stop()
            edges[number % 2] = FakeTextEdge(ending.path)


def test_a_client_with_nowhere_to_go_waits_for_a_daemon_to_come(edges: list[FakeTextEdge]) -> None:
    first, second = edges
    with Client(NAMES) as client, ThreadPoolExecutor(1) as pool:
        first.drain()
        second.drain()
        answer = pool.submit(client.generate, PROMPT)
        first.wait("it was asked again", lambda: len(first.requests) >= 2)
        second.refuses = False
        assert answer.result(DEADLINE_S).outputs[0].text == PROMPT + " "


async def test_asyncio_goes_on_at_the_next_one(edges: list[FakeTextEdge]) -> None:
    first, second = edges
    async with AsyncClient(NAMES) as client, asyncio.timeout(DEADLINE_S):
        stream = await client.generate("NEVER", stream=True)
        await anext(stream)
        first.refuses = True
        assert (await client.generate(PROMPT)).outputs[0].text == PROMPT + " "
        assert first.requests[0].client_request_id not in first.cancelled
        await asyncio.to_thread(first.drain)
        rest = asyncio.ensure_future(anext(stream))
        await asyncio.to_thread(second.wait, "the stream", lambda: len(second.requests) == 2)
        resume = second.requests[-1].resume
        assert resume is not None
        assert resume.samples[0].num_chars == 6
        rest.cancel()
        first.stop()
        assert (await client.generate(PROMPT)).outputs[0].text == PROMPT + " "
    assert len(second.hellos) == 1
