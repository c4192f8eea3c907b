"""Connections for which a gateway has no place: each gets 503 for its first request, and others are served on."""

import asyncio
from typing import Final, cast

from pillion.actors.gateway.http_errors import RETRY_AFTER_S, HttpError

REQUEST_WITHIN_S: Final = 1.0
# They take places too while they are about to ask; those above this number hear nothing.
MAX_AT_ONCE: Final = 24


class TurnedAway(asyncio.Protocol):
    """One such connection. It is closed when it has asked, and after a second anyway."""

    def __init__(self, most_connections: int, others: set["TurnedAway"]) -> None:
        """`others` are those of this gateway that are still open; this one adds itself."""
        self._most_connections = most_connections
        self._others = others
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)
        if len(self._others) >= MAX_AT_ONCE:
            self._transport.abort()
            return
        self._others.add(self)
        asyncio.get_running_loop().call_later(REQUEST_WITHIN_S, self._transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio."""
        self._others.discard(self)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: to close before would lose the answer, for the client still sends."""
        if self._transport.is_closing():
            return
        error = HttpError(
            503,
            f"{self._most_connections} connections are open: close some, or raise the limit of open files",
            code="overloaded",
        )
        body = error.body("openai")
        self._transport.write(
            b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"retry-after: %d\r\ncontent-length: %d\r\n\r\n%s" % (RETRY_AFTER_S, len(body), body)
        )
        self._transport.close()
