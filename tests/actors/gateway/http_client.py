"""A small HTTP client for tests: it shows the bytes as they are and can misbehave."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

DEADLINE_S = 20.0


@dataclass(frozen=True)
class Answer:
    """A whole response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["error"]
        return found

    @property
    def events(self) -> list[Any]:
        """The data of each server-sent event; the words that are not JSON as they are."""
        events = self.body.decode().split("\n\n")
        assert events.pop() == "", "the stream ends in the middle of an event"
        found = []
        for event in events:
            data = event.splitlines()[-1].removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
        return found


class HttpClient:
    """One connection to a Unix socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, path: Path) -> Self:
        return cls(*await asyncio.open_unix_connection(path))

    def send(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: test", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    async def receive(self) -> Answer:
        async with asyncio.timeout(DEADLINE_S):
            status, headers = await self.receive_head()
            if headers.get("transfer-encoding") == "chunked":
                parts = []
                while part := await self.receive_chunk():
                    parts.append(part)
                return Answer(status, headers, b"".join(parts))
            body = await self.reader.readexactly(int(headers["content-length"]))
            return Answer(status, headers, body)

    async def receive_head(self) -> tuple[int, dict[str, str]]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = [line.split(": ", 1) for line in head[1:] if line]
        return int(head[0].split()[1]), {name.lower(): value for name, value in pairs}

    async def receive_chunk(self) -> bytes:
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size)
        assert await self.reader.readexactly(2) == b"\r\n"
        return data

    async def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        data = body if isinstance(body, bytes) else b"" if body is None else self.encode(body)
        self.send(method, path, data, headers)
        return await self.receive()

    @staticmethod
    def encode(body: Any) -> bytes:
        return json.dumps(body).encode()

    def hang_up(self) -> None:
        self.writer.transport.abort()
