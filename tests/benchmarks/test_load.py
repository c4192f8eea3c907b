"""The closed-loop load: what it counts, and the HTTP stream that it reads."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator

import pytest
from peers.load import Answer, HttpTarget, drive, summary


def answer(sent: float, events: list[float], tokens: int, ended: float | None) -> Answer:
    return Answer(sent, events, tokens, ended)


def test_only_what_lies_in_the_window_counts() -> None:
    answers = [
        answer(0.5, [0.6, 1.5], 4, 1.6),  # sent before the window: its tokens in it count
        answer(1.1, [1.2, 1.3, 1.4, 1.8], 8, 1.9),
        answer(1.5, [1.9, 2.5], 4, 2.6),  # ended behind the window
        answer(1.8, [1.95], 0, None),  # dropped
    ]
    found = summary(answers, 1.0, 2.0)
    assert found["tokens_per_event"] == pytest.approx(2.0)
    assert found["tok_s"] == pytest.approx((1 + 4 + 1 + 1) * 2.0)
    assert found["completed"] == 1
    assert found["first_ms"] == pytest.approx(100.0)
    assert found["token_ms"] == pytest.approx(600.0 / 7)
    assert found["tokens_per_answer"] == pytest.approx(16 / 3)


def test_nothing_completed_is_told() -> None:
    found = summary([answer(1.0, [], 0, None)], 0.0, 1.0)
    assert found["completed"] == 0
    assert found["first_ms"] is None


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(content: object) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


STREAM = [
    *(event({"choices": [{"text": "x"}]}) for _ in range(3)),
    event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 7}}),
    b"data: [DONE]\n\n",
]


@contextlib.asynccontextmanager
async def target_of(
    status: bytes, parts: list[bytes], num_bytes: int, requests: list[bytes]
) -> AsyncIterator[HttpTarget]:
    """A server that answers every request with these chunks, in pieces of so many bytes."""

    handlers = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        while head := await reader.read(1 << 16):
            requests.append(head)
            body = b"".join(map(chunk, parts)) + b"0\r\n\r\n"
            text = b"HTTP/1.1 " + status + b"\r\ntransfer-encoding: chunked\r\n\r\n" + body
            for start in range(0, len(text), num_bytes):
                writer.write(text[start : start + num_bytes])
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        target = HttpTarget(f"http://127.0.0.1:{port}", "m", 7)
        try:
            yield target
        finally:
            target.close()
            async with asyncio.timeout(10):
                await asyncio.gather(*handlers)


@pytest.mark.parametrize("num_bytes", [1, 7, 10_000])
def test_http_streams_are_counted_however_they_are_cut(num_bytes: int) -> None:
    requests: list[bytes] = []

    async def run() -> list[Answer]:
        answers = [Answer(0.0), Answer(0.0)]
        async with target_of(b"200 OK", STREAM, num_bytes, requests) as target:
            for one in answers:
                async with asyncio.timeout(10):
                    await target.ask("prompt", one)
        return answers

    for found in asyncio.run(run()):
        assert found.num_tokens == 7
        assert len(found.events) == 3
    assert len(requests) == 2  # over one connection
    assert json.loads(requests[0].partition(b"\r\n\r\n")[2])["prompt"] == "prompt"


def test_a_refusal_ends_the_load_with_its_words() -> None:
    async def run() -> None:
        async with target_of(b"429 Too Many", [b"slow down"], 10_000, []) as target:
            await target.ask("prompt", Answer(0.0))

    with pytest.raises(RuntimeError, match="429"):
        asyncio.run(run())


def test_an_error_in_a_stream_is_no_token() -> None:
    async def run() -> None:
        stream = [event({"error": {"message": "lost"}}), STREAM[-1]]
        async with target_of(b"200 OK", stream, 99, []) as target:
            await target.ask("prompt", Answer(0.0))

    with pytest.raises(RuntimeError, match="lost"):
        asyncio.run(run())


def test_requests_are_kept_in_flight_until_the_end() -> None:
    running, most = 0, 0

    async def ask(prompt: str, found: Answer) -> None:
        nonlocal running, most
        assert len(prompt) == 12
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        found.events.append(time.perf_counter())
        running -= 1

    now = time.perf_counter()
    answers = asyncio.run(drive(ask, 5, "0", 12, now, now + 0.05))
    assert most == 5
    assert len(answers) > 5


def test_a_request_that_fails_ends_the_load() -> None:
    async def ask(prompt: str, found: Answer) -> None:
        raise RuntimeError("refused")

    now = time.perf_counter()
    with pytest.raises(RuntimeError, match="refused"):
        asyncio.run(drive(ask, 2, "0", 12, now, now + 5.0))
