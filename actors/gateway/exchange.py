"""One HTTP request and its response, and the moment at which the client leaves."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.types import Receive, Scope, Send

from pillion.actors.gateway.http_errors import ApiShape, HttpError

if TYPE_CHECKING:
    from pillion.actors.gateway.server_span import ServerSpan

Headers = Sequence[tuple[bytes, bytes]]

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
BODY_TIMEOUT_S: Final = 60.0
# A client that takes nothing for so long is given up.
SEND_TIMEOUT_S: Final = 30.0

_JSON: Final = b"application/json"
_EVENTS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must not collect events
)


class ClientGone(Exception):
    """The client has hung up or reads nothing; whatever it asked for is to be cancelled."""


class Exchange:
    """What a route has to do with HTTP."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.scope = scope
        self.request_id = request_id
        self.api_shape: ApiShape = "openai"
        self.status = 0  # of the response, once it has begun
        self.span: ServerSpan | None = None  # if it is traced
        self._receive = receive
        self._send = send

    def header(self, name: bytes) -> bytes | None:
        """The first header of this name (in lower case)."""
        for key, value in self.scope["headers"]:
            if key == name:
                found: bytes = value
                return found
        return None

    async def read_body(self) -> bytes:
        """The whole body. Raises HttpError 413 or 408, and ClientGone."""
        announced = self.header(b"content-length")
        if announced is not None and int(announced) > MAX_BODY_BYTES:
            raise _too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > MAX_BODY_BYTES:
                        raise _too_large()
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError as error:
            raise HttpError(
                408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s", code="timeout"
            ) from error

    async def while_connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Does this work, which may answer; the body must have been read.

        Raises what the work raises, and ClientGone, with the work cancelled, as soon as the client leaves.
        """
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self._wait_gone())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not working.done():
                working.cancel()
                await asyncio.wait((working,))
        if working.cancelled():
            raise ClientGone
        working.result()

    async def reply(
        self, status: int, body: bytes, headers: Headers = (), content_type: bytes = _JSON
    ) -> None:
        """The whole response."""
        await self._begin(
            status,
            [
                (b"content-type", content_type),
                (b"content-length", str(len(body)).encode()),
                *headers,
            ],
        )
        await self._write({"type": "http.response.body", "body": body})

    async def start_events(self, headers: Headers = ()) -> None:
        """Begins a stream of server-sent events."""
        await self._begin(200, [*_EVENTS, *headers])

    async def send_events(self, data: bytes) -> None:
        """Sends events. Raises ClientGone when the client takes nothing."""
        await self._write({"type": "http.response.body", "body": data, "more_body": True})

    async def end_events(self) -> None:
        """Ends the stream."""
        await self._write({"type": "http.response.body", "body": b""})

    async def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        headers.append((b"x-request-id", self.request_id.encode()))
        await self._write({"type": "http.response.start", "status": status, "headers": headers})

    async def _write(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._send(message)
        except TimeoutError as error:
            transport = self.scope.get("pillion.transport")
            if transport is not None:
                transport.abort()  # closing in order would wait for the client to read
            raise ClientGone from error
        except OSError as error:
            raise ClientGone from error

    async def _wait_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _too_large() -> HttpError:
    return HttpError(
        413, f"a body may have at most {MAX_BODY_BYTES} bytes", code="request_too_large"
    )
