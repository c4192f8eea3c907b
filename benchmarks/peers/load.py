"""Closed-loop load on a server, text in and text out: through Pillion's client library or over HTTP.

usage: python -m peers.load TARGET --model NAME [--concurrency 64] [--input 128] [--output 128] [--seconds 8]

TARGET is client:NAME for the daemon of that name, or the address of any server with OpenAI's completions. So many
requests are kept in flight; whenever one ends, the next is sent with a fresh prompt of random letters,
which the made-up tokenizer of shapes.py takes for a token each. After `--warm` seconds the window opens.
Tokens count when they arrive in it, first tokens of requests that were sent and completed in it.
"""

import argparse
import asyncio
import json
import random
import re
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# Requests in flight of one process; beyond, the load itself would be what is measured.
PER_PROCESS = 64
START_S = 1.2  # until all processes are up
COMPLETION_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')


@dataclass
class Answer:
    """One request: when it was sent, when events came, how many tokens they held in all."""

    sent: float
    events: list[float] = field(default_factory=list)
    num_tokens: int = 0
    ended: float | None = None


Ask = Callable[[str, Answer], Awaitable[None]]


class LibraryTarget:
    """Pillion's client library."""

    def __init__(self, name: str, num_output: int) -> None:
        from pillion import AsyncClient, SamplingParams

        self._client = AsyncClient(name)
        self._params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)

    async def ask(self, prompt: str, answer: Answer) -> None:
        stream = await self._client.generate(prompt, self._params, stream=True)
        async with stream:
            async for new in stream:
                got = len(new.outputs[0].token_ids)
                if got:
                    answer.events.append(time.perf_counter())
                    answer.num_tokens += got


class HttpTarget:
    """A server with OpenAI's completions; connections are kept and used again."""

    def __init__(self, address: str, model: str, num_output: int) -> None:
        host, _, port = address.removeprefix("http://").rpartition(":")
        self._host, self._port = host, int(port)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._body = {
            "model": model,
            "max_tokens": num_output,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def ask(self, prompt: str, answer: Answer) -> None:
        connection = (
            self._idle.pop()
            if self._idle
            else await asyncio.open_connection(self._host, self._port)
        )
        try:
            await self._exchange(*connection, prompt, answer)
        except BaseException:
            connection[1].close()
            raise
        self._idle.append(connection)

    def close(self) -> None:
        """Closes the connections that are kept."""
        for _, writer in self._idle:
            writer.close()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        prompt: str,
        answer: Answer,
    ) -> None:
        body = json.dumps(self._body | {"prompt": prompt}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        status = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in status.split(b"\r\n", 1)[0] + b" ":
            raise RuntimeError(f"{status!r} {await reader.read(300)!r}")
        await self._events(reader, answer)

    async def _events(self, reader: asyncio.StreamReader, answer: Answer) -> None:
        """Counts server-sent events until the body's last chunk; the last event but one says how many tokens."""
        rest = b""
        while not rest.endswith(b"\r\n0\r\n\r\n"):
            data = await reader.read(1 << 16)
            if not data:
                raise RuntimeError("the server closed the connection")
            now = time.perf_counter()
            events = (rest + data).split(b"data: ")
            # What follows the last mark is not yet complete, and what precedes the first is not an event.
            rest = b"data: " + events[-1] if len(events) > 1 else events[0]
            complete = [event for event in events[1:-1] if event.startswith(b"{")]
            for event in complete:
                if event.startswith(b'{"error"'):  # a token's text may be "error" too
                    raise RuntimeError(event[:300].decode(errors="replace"))
                if usage := COMPLETION_TOKENS.search(event):
                    answer.num_tokens = int(usage[1])
            answer.events += [now] * sum(
                b'"choices":[]' not in e.replace(b" ", b"") for e in complete
            )


async def drive(
    ask: Ask, share: int, seed: str, num_input: int, begin: float, stop: float
) -> list[Answer]:
    """Keeps `share` requests in flight until `stop`; those in flight then are dropped."""
    answers: list[Answer] = []

    async def one(rng: random.Random) -> None:
        await asyncio.sleep(max(0.0, begin - time.perf_counter()))
        while time.perf_counter() < stop:
            prompt = "".join(rng.choices(string.ascii_letters, k=num_input))
            answer = Answer(time.perf_counter())
            answers.append(answer)
            await ask(prompt, answer)
            answer.ended = time.perf_counter()

    tasks = [asyncio.create_task(one(random.Random(f"{seed}/{i}"))) for i in range(share)]
    _, pending = await asyncio.wait(tasks, timeout=stop - time.perf_counter())
    for task in pending:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    return answers


def summary(answers: list[Answer], opened: float, closed: float) -> dict[str, Any]:
    """Rates inside the window."""
    # How many tokens an event holds is known of answers that are complete.
    complete = [a for a in answers if a.ended is not None and a.events]
    num_events = sum(len(a.events) for a in complete)
    per_event = sum(a.num_tokens for a in complete) / num_events if num_events else 1.0
    events = sum(opened <= at < closed for a in answers for at in a.events)
    inside = [a for a in complete if a.sent >= opened and (a.ended or closed) < closed]
    first_ms = sorted((a.events[0] - a.sent) * 1e3 for a in inside)
    token_ms = [
        (a.events[-1] - a.events[0]) * 1e3 / (a.num_tokens - 1) for a in inside if a.num_tokens > 1
    ]
    return {
        "tok_s": events * per_event / (closed - opened),
        "first_ms": statistics.median(first_ms) if first_ms else None,
        "first_p99_ms": first_ms[int(0.99 * (len(first_ms) - 1))] if first_ms else None,
        "token_ms": statistics.median(token_ms) if token_ms else None,
        "completed": len(inside),
        "tokens_per_event": per_event,
        "tokens_per_answer": statistics.mean(a.num_tokens for a in complete) if complete else None,
    }


def part(a: argparse.Namespace) -> None:
    """One process of the load: its answers as JSON in a file."""
    import uvloop

    async def run() -> list[Answer]:
        target: LibraryTarget | HttpTarget
        kind, _, name = a.target.partition(":")
        if kind == "client":
            target = LibraryTarget(name, a.output)
        else:
            target = HttpTarget(a.target, a.model, a.output)
        stop = a.begin + a.warm + a.seconds
        return await drive(target.ask, a.part, f"{a.seed}/{a.begin}", a.input, a.begin, stop)

    a.into.write_text(json.dumps([asdict(answer) for answer in uvloop.run(run())]))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--model", default="")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--input", type=int, default=128)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--warm", type=float, default=1.0)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--begin", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.part:
        part(a)
        return 0
    begin = time.perf_counter() + START_S  # one clock for all processes of a machine
    num_parts = -(-a.concurrency // PER_PROCESS)
    shares = [
        a.concurrency // num_parts + (i < a.concurrency % num_parts) for i in range(num_parts)
    ]
    command = [sys.executable, "-m", "peers.load", *sys.argv[1:], "--begin", str(begin)]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(i) for i in range(num_parts)]
        running = [
            subprocess.Popen(
                [*command, "--part", str(share), "--seed", f"{a.seed}/{i}", "--into", str(file)]
            )
            for i, (share, file) in enumerate(zip(shares, files, strict=True))
        ]
        if any(status != 0 for status in [process.wait() for process in running]):
            return 1
        answers = [Answer(**answer) for file in files for answer in json.loads(file.read_text())]
    opened = begin + a.warm
    print(json.dumps(summary(answers, opened, opened + a.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
