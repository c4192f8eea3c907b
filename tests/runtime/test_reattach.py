"""Clients of both kinds whose connection is lost in the middle of everything."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_text_edge import DEADLINE_S, FakeTextEdge, fake_launcher

from pillion.messages.sampling import SamplingParams
from pillion.runtime.client import AsyncClient, Client
from pillion.runtime.errors import DaemonUnavailable, RequestError

PROMPT = "one two three four five"
IDS = [3, 3, 5, 4, 4]


@pytest.fixture
def edge(runtime_root: Path) -> Iterator[FakeTextEdge]:
    (runtime_root / "default").mkdir()
    edge = FakeTextEdge(runtime_root / "default" / "client.sock")
    yield edge
    edge.stop()


@pytest.fixture
def client(edge: FakeTextEdge) -> Iterator[Client]:
    with Client() as client:
        yield client


@pytest.fixture
def launcher(edge: FakeTextEdge) -> Iterator[None]:
    with fake_launcher(edge.path):
        yield


@pytest.mark.parametrize("num_chunks", range(10))
def test_a_stream_goes_on_behind_what_has_come(
    client: Client, edge: FakeTextEdge, num_chunks: int
) -> None:
    edge.hang_up_after = num_chunks
    params = SamplingParams(n=2, logprobs=1)
    stream = client.generate(PROMPT, params, stream=True, return_prompt_token_ids=True)
    news = list(stream)
    for index in range(2):
        parts = [new.outputs[0] for new in news if new.outputs[0].index == index]
        assert "".join(part.text for part in parts) == PROMPT + " "
        assert [token_id for part in parts for token_id in part.token_ids] == IDS
    for sample in stream.output.outputs:
        assert sample.text == PROMPT + " "
        assert sample.token_ids == IDS
        assert sample.logprobs is not None
        assert len(sample.logprobs) == 5
    assert stream.output.prompt_token_ids == [7, 8, 9]
    assert stream.output.finished
    assert len(edge.hellos) == 2
    assert edge.requests[1].sampling_params == edge.requests[0].sampling_params


def test_a_list_goes_on(client: Client, edge: FakeTextEdge) -> None:
    prompts = [f"prompt number {index}" for index in range(100)]
    edge.hang_up_after = 130
    outputs = client.generate(prompts, SamplingParams(n=2))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert [sample.text for sample in output.outputs] == [prompt + " "] * 2
    assert len(edge.hellos) == 2


def test_everything_waits_for_the_next_text_edge(
    client: Client, edge: FakeTextEdge, launcher: None
) -> None:
    stream = client.generate("NEVER", stream=True)
    next(stream)
    edge.stop()
    with ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(next, stream),
            pool.submit(client.generate, PROMPT),
            pool.submit(client.generate, ["a", "b"]),
            pool.submit(client.tokenize, "a bc"),
        ]
        edge = FakeTextEdge(edge.path)
        edge.wait("four requests", lambda: len(edge.requests) == 4)
        assert calls[3].result(DEADLINE_S) == [1, 2]
        answer, answers = calls[1].result(DEADLINE_S), calls[2].result(DEADLINE_S)
        assert answer.outputs[0].text == PROMPT + " "
        assert [one.outputs[0].text for one in answers] == ["a ", "b "]
        resumed = [one for one in edge.requests if one.resume is not None and one.stream]
        assert [one.resume.samples[0].num_chars for one in resumed if one.resume] == [6]
        client.close()
        with pytest.raises(DaemonUnavailable, match="the client was closed"):
            calls[0].result(DEADLINE_S)
    assert len(edge.hellos) == 1
    edge.stop()


def test_without_a_launcher_nobody_waits(client: Client, edge: FakeTextEdge) -> None:
    stream = client.generate("NEVER", stream=True)
    next(stream)
    edge.stop()
    started = time.monotonic()
    with pytest.raises(DaemonUnavailable, match=r"(closed the connection|was lost).*pillion serve"):
        next(stream)
    with pytest.raises(DaemonUnavailable, match="pillion serve"):
        client.generate("a")
    assert time.monotonic() - started < 2.0


def test_waiting_ends(edge: FakeTextEdge, launcher: None) -> None:
    with Client(reattach_timeout=0.2) as client:
        stream = client.generate("NEVER", stream=True)
        next(stream)
        edge.stop()
        with pytest.raises(DaemonUnavailable, match="no Pillion daemon"):
            next(stream)
        with pytest.raises(DaemonUnavailable, match="no Pillion daemon"):
            client.generate("a", timeout=0.01)


def test_a_new_client_waits_for_the_text_edge(runtime_root: Path) -> None:
    (runtime_root / "default").mkdir()
    path = runtime_root / "default" / "client.sock"
    with fake_launcher(path), ThreadPoolExecutor(1) as pool:
        client = pool.submit(Client)
        edge = FakeTextEdge(path)
        with client.result(DEADLINE_S):
            edge.wait("a greeting", lambda: len(edge.hellos) == 1)
        edge.stop()


def test_a_client_that_is_closed_meanwhile(
    client: Client, edge: FakeTextEdge, launcher: None
) -> None:
    stream = client.generate("NEVER", stream=True)
    next(stream)
    edge.stop()
    threading.Timer(0.1, client.close).start()
    with pytest.raises(DaemonUnavailable, match="this client was closed"):
        next(stream)


def test_a_stream_that_is_left_meanwhile_is_not_sent_again(
    client: Client, edge: FakeTextEdge, launcher: None
) -> None:
    stream = client.generate("NEVER", stream=True)
    next(stream)
    edge.stop()
    stream.close()
    edge = FakeTextEdge(edge.path)
    assert client.generate("a").outputs[0].text == "a "
    assert [request.prompt for request in edge.requests] == ["a"]
    edge.stop()


def test_a_stream_is_cancelled_where_it_went_on(client: Client, edge: FakeTextEdge) -> None:
    edge.hang_up_after = 1
    stream = client.generate(PROMPT, stream=True)
    next(stream)
    next(stream)
    assert len(edge.hellos) == 2
    stream.close()
    edge.wait("the cancel", lambda: edge.cancelled == ["0"])


def test_a_request_that_ends_every_connection_is_given_up(
    client: Client, edge: FakeTextEdge
) -> None:
    with pytest.raises(DaemonUnavailable, match="lost 4 times before anything came"):
        client.generate("HANGUP")
    assert len(edge.requests) == 4
    assert client.generate("a").outputs[0].text == "a "
    with (
        Client(max_losses=2) as impatient,
        pytest.raises(DaemonUnavailable, match="lost 3 times"),
    ):
        next(impatient.generate("HANGUP", stream=True))


def test_another_model_does_not_go_on(client: Client, edge: FakeTextEdge) -> None:
    stream = client.generate("NEVER", stream=True)
    next(stream)
    edge.model_name = "another"
    edge.hang_up_on_all()
    with pytest.raises(DaemonUnavailable, match=r"served 'fake' and is gone.* serves 'another'"):
        next(stream)


def test_a_daemon_that_ends_is_not_asked_again(
    client: Client, edge: FakeTextEdge, launcher: None
) -> None:
    stream = client.generate("NEVER", stream=True)
    next(stream)
    edge.drain()
    with pytest.raises(RequestError, match="the daemon is stopping") as caught:
        next(stream)
    assert caught.value.code == "unavailable"
    with pytest.raises(RequestError, match="the daemon is stopping"):
        client.generate("a")
    assert len(edge.requests) == 2
    assert len(edge.hellos) == 1


def test_a_client_may_outlive_its_daemon(edge: FakeTextEdge) -> None:
    with Client(outlive_daemon=True) as client, ThreadPoolExecutor(3) as pool:
        stream = client.generate("NEVER", stream=True)
        next(stream)
        edge.drain()
        calls = [
            pool.submit(next, stream),
            pool.submit(client.generate, PROMPT),
            pool.submit(client.generate, ["a", "b"]),
        ]
        edge.wait("refusals of a while", lambda: len(edge.requests) >= 8)
        edge.stop()
        edge = FakeTextEdge(edge.path)
        answer, answers = calls[1].result(DEADLINE_S), calls[2].result(DEADLINE_S)
        assert answer.outputs[0].text == PROMPT + " "
        assert [one.outputs[0].text for one in answers] == ["a ", "b "]
        edge.wait("the stream", lambda: len(edge.requests) == 4)
        assert len(edge.hellos) == 1
        client.close()
        with pytest.raises(DaemonUnavailable, match="the client was closed"):
            calls[0].result(DEADLINE_S)
    edge.stop()


async def test_asyncio_client_may_outlive_its_daemon(edge: FakeTextEdge) -> None:
    async with AsyncClient(outlive_daemon=True) as client:
        await client.welcome()
        await asyncio.to_thread(edge.drain)
        call = asyncio.ensure_future(client.generate(PROMPT))
        await asyncio.to_thread(edge.wait, "refusals", lambda: len(edge.requests) >= 3)
        await asyncio.to_thread(edge.stop)
        edge = await asyncio.to_thread(FakeTextEdge, edge.path)
        async with asyncio.timeout(DEADLINE_S):
            assert (await call).outputs[0].text == PROMPT + " "
        await asyncio.to_thread(edge.stop)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_take_a_stream_over(client: Client, edge: FakeTextEdge) -> None:
    stream = client.generate("NEVER", stream=True)
    next(stream)
    pid = os.fork()
    if pid == 0:
        try:
            next(stream)
        except DaemonUnavailable as error:
            os._exit(0 if "parent process" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(edge.requests) == 1


@pytest.mark.parametrize("num_chunks", [0, 3, 5, 8])
async def test_asyncio_streams_go_on(edge: FakeTextEdge, num_chunks: int) -> None:
    async with AsyncClient() as client:
        edge.hang_up_after = num_chunks
        stream = await client.generate(PROMPT, SamplingParams(n=2), stream=True)
        texts = ["", ""]
        async for new in stream:
            texts[new.outputs[0].index] += new.outputs[0].text
        assert texts == [PROMPT + " "] * 2
        edge.hang_up_after = 2
        outputs = await client.generate(["a b", "c d", "e f"])
        assert [output.outputs[0].text for output in outputs] == ["a b ", "c d ", "e f "]


async def test_asyncio_waits_for_the_next_text_edge(edge: FakeTextEdge, launcher: None) -> None:
    async with AsyncClient() as client:
        stream = await client.generate("NEVER", stream=True)
        await anext(stream)
        await asyncio.to_thread(edge.stop)
        left = asyncio.ensure_future(anext(stream))
        calls = [
            asyncio.ensure_future(client.generate(PROMPT)),
            asyncio.ensure_future(client.generate(["a", "b"])),
            asyncio.ensure_future(client.tokenize("a bc")),
        ]
        await asyncio.sleep(0)
        left.cancel()  # while it waits: it must not be sent again
        with pytest.raises(asyncio.CancelledError):
            await left
        edge = await asyncio.to_thread(FakeTextEdge, edge.path)
        async with asyncio.timeout(DEADLINE_S):
            answer, answers, tokens = await asyncio.gather(*calls)
        assert answer.outputs[0].text == PROMPT + " "
        assert [one.outputs[0].text for one in answers] == ["a ", "b "]
        assert tokens == [1, 2]
        assert [request.prompt for request in edge.requests if request.stream] == []
        await asyncio.to_thread(edge.stop)


async def test_asyncio_without_a_launcher_nobody_waits(edge: FakeTextEdge) -> None:
    async with AsyncClient() as client:
        stream = await client.generate("NEVER", stream=True)
        await anext(stream)
        await asyncio.to_thread(edge.stop)
        async with asyncio.timeout(2):
            with pytest.raises(DaemonUnavailable, match="pillion serve"):
                await anext(stream)


async def test_asyncio_client_closed_meanwhile(edge: FakeTextEdge, launcher: None) -> None:
    client = AsyncClient()
    stream = await client.generate("NEVER", stream=True)
    await anext(stream)
    await asyncio.to_thread(edge.stop)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    await client.close()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(DaemonUnavailable, match="closed"):
            await waiting


def test_a_text_edge_that_does_not_greet_is_not_waited_for_alone(
    edge: FakeTextEdge, launcher: None
) -> None:
    """A stopped process accepts connections and says nothing; its successor does."""
    with Client(connect_timeout=0.3) as client:
        stream = client.generate("NEVER", stream=True)
        next(stream)
        edge.stop()
        edge.path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as silent, ThreadPoolExecutor(1) as pool:
            silent.bind(str(edge.path))
            silent.listen()
            waiting = pool.submit(next, stream)
            with silent.accept()[0] as unanswered:
                unanswered.recv(1000)
                edge = FakeTextEdge(edge.path)
            edge.wait("the request again", lambda: len(edge.requests) == 1)
            client.close()
            with pytest.raises(DaemonUnavailable, match="closed"):
                waiting.result(DEADLINE_S)
        edge.stop()
