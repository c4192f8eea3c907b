"""The asyncio client against a text edge that answers well, badly or not at all."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_text_edge import DEADLINE_S, FakeTextEdge

from pillion.messages.sampling import SamplingParams
from pillion.runtime import client_requests, open_answer
from pillion.runtime.client import AsyncClient
from pillion.runtime.errors import DaemonUnavailable, InvalidRequest, RequestError
from pillion.runtime.link_options import LinkOptions


@pytest.fixture
def edge(runtime_root: Path) -> Iterator[FakeTextEdge]:
    (runtime_root / "default").mkdir()
    edge = FakeTextEdge(runtime_root / "default" / "client.sock")
    yield edge
    edge.stop()


@pytest.fixture
async def client(edge: FakeTextEdge) -> AsyncIterator[AsyncClient]:
    async with AsyncClient() as client:
        yield client


async def seen(edge: FakeTextEdge, what: str, num_cancelled: int) -> None:
    """Waits on a thread, so that the loop can send what is waited for."""
    await asyncio.to_thread(edge.wait, what, lambda: len(edge.cancelled) == num_cancelled)


async def test_generates(client: AsyncClient) -> None:
    output = await client.generate("one two", SamplingParams(n=2))
    assert [sample.text for sample in output.outputs] == ["one two ", "one two "]
    assert (await client.generate([1, 2])).outputs[0].text == "x xx "
    chat = await client.chat([{"role": "user", "content": "hello"}])
    assert chat.outputs[0].text == "hello "
    assert (await client.welcome()).model_name == "fake"


async def test_streams(client: AsyncClient) -> None:
    async with await client.generate("a bc", stream=True) as stream:
        texts = [new.outputs[0].text async for new in stream]
    assert texts == ["a ", "bc "]
    assert stream.output.outputs[0].token_ids == [1, 2]


async def test_a_connected_client_sends_without_looking_for_a_connection(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(LinkOptions, "patience")
    monkeypatch.delattr(asyncio, "timeout")
    assert (await client.generate("a")).outputs[0].text == "a "


async def test_an_answer_is_begun_when_its_request_has_left(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []
    connection = await client._link.connected()
    submit, assembly = connection.submit, open_answer.RequestAssembly

    async def submitted(*args: Any) -> None:
        order.append("submitted")
        await submit(*args)

    def begun(*args: Any) -> open_answer.RequestAssembly:
        order.append("begun")
        return assembly(*args)

    monkeypatch.setattr(connection, "submit", submitted)
    monkeypatch.setattr(open_answer, "RequestAssembly", begun)
    assert (await client.generate("a")).outputs[0].text == "a "
    assert order == ["submitted", "begun"]


async def test_what_comes_goes_to_the_same_memory(client: AsyncClient) -> None:
    connection = await client._link.connected()
    buffer = connection.get_buffer(-1)
    output = await client.generate("word " * 40_000)
    assert len(output.outputs[0].token_ids) == 40_000, "more than fits at once"
    assert connection.get_buffer(-1) is buffer


async def test_a_list_keeps_its_order(client: AsyncClient, edge: FakeTextEdge) -> None:
    prompts = [f"FULL {index}" for index in range(300)]
    outputs = await client.generate(prompts)
    assert [output.outputs[0].text for output in outputs] == [prompt + " " for prompt in prompts]
    assert edge.num_refused > 0
    with pytest.raises(InvalidRequest, match=r"prompt 1: .*liking"):
        await client.generate(["NEVER", "REFUSE"])
    await seen(edge, "the cancel of the other", 1)


async def test_tasks_share_a_client(client: AsyncClient, edge: FakeTextEdge) -> None:
    async def work(number: int) -> str:
        stream = await client.generate(f"task {number}", stream=True)
        return "".join([new.outputs[0].text async for new in stream])

    texts = await asyncio.gather(*(work(number) for number in range(200)))
    assert texts == [f"task {number} " for number in range(200)]
    assert len(edge.hellos) == 1


async def test_cancelling_a_task_cancels_its_request(
    client: AsyncClient, edge: FakeTextEdge
) -> None:
    async def stream_for_ever() -> None:
        async for _ in await client.generate("NEVER", stream=True):
            pass

    tasks = [
        asyncio.create_task(client.generate("MUTE")),
        asyncio.create_task(client.generate(["MUTE", "MUTE"])),
        asyncio.create_task(stream_for_ever()),
    ]
    await asyncio.to_thread(edge.wait, "the requests", lambda: len(edge.requests) == 4)
    for task in tasks:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await seen(edge, "four cancels", 4)
    assert (await client.generate("and on")).outputs[0].text == "and on "


async def test_a_timeout_around_a_call_cancels_its_request(
    client: AsyncClient, edge: FakeTextEdge
) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.generate("MUTE"), 0.05)
    await seen(edge, "the cancel", 1)


async def test_leaving_a_stream_cancels(client: AsyncClient, edge: FakeTextEdge) -> None:
    async for _ in await client.generate("NEVER", stream=True):
        break
    await seen(edge, "the cancel of a loop that was left", 1)
    async with await client.generate("NEVER", stream=True):
        pass
    await seen(edge, "the cancel of a block", 2)
    stream = await client.generate("NEVER", stream=True)
    await stream.aclose()
    await seen(edge, "the cancel of a closed stream", 3)
    # Dropped on another thread, as a garbage collector may do it.
    held = [await client.generate("NEVER", stream=True)]
    await asyncio.to_thread(held.clear)
    gc.collect()
    await seen(edge, "the cancel of a dropped stream", 4)


@pytest.mark.parametrize("prompt", ["NOISE", "HUGE"])
async def test_nonsense_from_the_daemon_ends_every_request_at_once(
    client: AsyncClient, edge: FakeTextEdge, prompt: str
) -> None:
    other = asyncio.create_task(client.generate(["MUTE", "MUTE"]))
    stream = await client.generate("NEVER", stream=True)
    await stream.__anext__()
    await asyncio.to_thread(edge.wait, "the requests", lambda: len(edge.requests) == 3)
    async with asyncio.timeout(DEADLINE_S):
        for call in (client.generate(prompt), other, stream.__anext__()):
            with pytest.raises(DaemonUnavailable):
                await call
    assert (await client.generate("back")).outputs[0].text == "back "
    assert len(edge.hellos) == 2


async def test_chunks_that_do_not_join_are_an_error(client: AsyncClient) -> None:
    with pytest.raises(RequestError, match="are missing"):
        await client.generate("GAP")
    with pytest.raises(RequestError, match=r"prompt 0: .*came twice"):
        await client.generate(["TWICE"])


async def test_deadlines(
    client: AsyncClient, edge: FakeTextEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "GUARD_S", 0.05)
    start = time.monotonic()
    for prompts in ("MUTE", ["MUTE"]):
        with pytest.raises(RequestError, match="did not end the request"):
            await client.generate(prompts, timeout=0.05)  # type: ignore[call-overload]
    assert time.monotonic() - start < 5
    await seen(edge, "both cancels", 2)


async def test_tokens_and_text(client: AsyncClient) -> None:
    assert await client.tokenize("a bc") == [1, 2]
    assert await client.detokenize([1, 2]) == "x xx"
    with pytest.raises(RequestError, match="only generates"):
        await client.embed(["a"])


@pytest.mark.parametrize(
    ("greeting", "message"),
    [
        ("other version", "version 2 of the client protocol"),
        ("refuse", "the daemon is stopping"),
        ("hang up", "closed the connection|was lost"),
        ("noise", "does not understand"),
        ("silence", r"did not answer within 0\.2 s"),
    ],
)
async def test_greetings_that_fail(edge: FakeTextEdge, greeting: str, message: str) -> None:
    edge.greeting = greeting
    client = AsyncClient(connect_timeout=0.2 if greeting == "silence" else DEADLINE_S)
    with pytest.raises(DaemonUnavailable, match=message):
        await client.generate("a")


async def test_no_daemon(runtime_root: Path) -> None:
    with pytest.raises(DaemonUnavailable, match="pillion serve MODEL --name nobody"):
        await AsyncClient("nobody").generate("a")


async def test_a_closed_client(client: AsyncClient, edge: FakeTextEdge) -> None:
    stream = await client.generate("MUTE", stream=True)
    await client.close()
    with pytest.raises(DaemonUnavailable, match="the client was closed"):
        await stream.__anext__()
    with pytest.raises(DaemonUnavailable, match="was closed"):
        await client.generate("a")


def test_a_client_follows_its_user_to_the_next_loop(edge: FakeTextEdge) -> None:
    client = AsyncClient()

    async def once(close: bool) -> str:
        output = await client.generate("a")
        if close:
            await client.close()
        else:
            (
                await client._link.connected()
            ).close()  # or its transport would complain about the loop's end
            await asyncio.sleep(0)
        return output.outputs[0].text

    assert asyncio.run(once(False)) == "a "
    assert asyncio.run(once(True)) == "a "
    assert len(edge.hellos) == 2


async def test_one_client_is_not_shared_by_running_loops(
    client: AsyncClient, edge: FakeTextEdge
) -> None:
    with pytest.raises(RuntimeError, match="another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(client.generate("a")))  # type: ignore[arg-type]


async def test_large_prompts_wait_for_the_daemon_to_read(client: AsyncClient) -> None:
    async with asyncio.timeout(DEADLINE_S):
        answers = await asyncio.gather(*(client.tokenize("a" * 4_000_000) for _ in range(5)))
    assert answers == [[4_000_000]] * 5
    with pytest.raises(InvalidRequest, match="protocol allows"):
        await client.generate("a" * 65 * 1024 * 1024)
