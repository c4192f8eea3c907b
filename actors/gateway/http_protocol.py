"""HTTP/1.1 connections: uvicorn's protocol with a limit on silence, and clients that leave are always noticed."""

import asyncio
from collections import deque
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from pillion.actors.gateway.http_errors import HttpError
from pillion.actors.gateway.request_parser import RequestParser

# From the first byte of a request, or from connecting, to the end of its headers.
HEADERS_TIMEOUT_S: Final = 30.0
KEEP_ALIVE_S: Final = 75
# Behind an answer's end: a client that takes none of what waits for so long is given up.
UNSENT_S: Final = 30.0
# What a buggy or hostile client may send as a request line and headers.
MAX_HEADER_BYTES: Final = 64 * 1024
# Of bodies that a client sends ahead while it still waits for an answer; while there is more of it, nothing is read
# of the connection, and so not its end either.
MAX_BYTES_AHEAD: Final = 1024 * 1024
# What a client still sends of a request that is answered is read for so long before its connection is closed.
LINGER_S: Final = 10.0
_HEADER_LINE_BYTES: Final = len(b": \r\n")
_REFUSAL: Final = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"


class GatewayProtocol(HttpToolsProtocol):
    """One connection. Requests find its transport in their scope as "pillion.transport"."""

    parser: RequestParser  # type: ignore[assignment]

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self.parser = RequestParser(self)
        self._headers_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0  # received in front of the end of a request's headers
        self._parsed_header_bytes = 0
        self._in_headers = False
        self._lingers = False  # all is answered that will be
        self._in_body = False
        self._rest_timer: asyncio.TimerHandle | None = None
        self._unsent_timer: asyncio.TimerHandle | None = None
        # Those that are not answered: the first is being served, the others were sent ahead.
        self._cycles: deque[RequestResponseCycle] = deque()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio."""
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._stop_timer()
        for timer in (self._rest_timer, self._unsent_timer):
            if timer is not None:
                timer.cancel()
        # uvicorn tells only the last one.
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        if self._lingers:
            return
        if self._in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._header_bytes > MAX_HEADER_BYTES and not self._lingers:
            self._refuse_headers()
        if self.pipeline and sum(len(each.body) for each in self._cycles) < MAX_BYTES_AHEAD:
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        """Called by the parser at a request's first byte."""
        super().on_message_begin()
        self.scope["pillion.transport"] = self.transport  # type: ignore[typeddict-unknown-key]
        self._parsed_header_bytes = 0
        self._expect_headers()

    def on_url(self, url: bytes) -> None:
        """Called by the parser with a part of it."""
        self._count_parsed(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self._count_parsed(len(name) + len(value) + _HEADER_LINE_BYTES)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._stop_timer()
        self._in_headers = False
        self._in_body = True
        self._header_bytes = 0
        super().on_headers_complete()
        self.cycle.transport = _ResponseTransport(self, self.cycle)
        while self._cycles and self._cycles[0].response_complete:
            self._cycles.popleft()
        self._cycles.append(self.cycle)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._in_body = False
        if self._rest_timer is not None:
            self._rest_timer.cancel()
        if not self.parser.is_cut_short:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Called by uvicorn; nothing more is served on a connection that is being closed."""
        if self._lingers:
            return
        if self._in_body and self.cycle.response_complete:
            self._rest_timer = self.loop.call_later(LINGER_S, self._give_up)
        self._watch_unsent()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for what is no HTTP, or when a method above has refused it."""
        if self._parsed_header_bytes > MAX_HEADER_BYTES:
            self._refuse_headers()
        elif any(each.response_started and not each.response_complete for each in self._cycles):
            self.transport.abort()  # an answer would come into the middle of another
        else:
            error = HttpError(
                400,
                "what came is no request of HTTP/1.1; this server speaks no TLS",
                code="invalid_request",
            )
            self._write_refusal(b"400 Bad Request", error)
            self.transport.close()

    def linger(self) -> None:
        """Says that nothing follows, and reads until the client has heard that.

        If it were closed while something unread lies in it, the connection would be reset and the answer lost.
        """
        self._stop_timer()
        self._lingers = True
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.abort)

    def _count_parsed(self, num_bytes: int) -> None:
        self._parsed_header_bytes += num_bytes
        if self._parsed_header_bytes > MAX_HEADER_BYTES:
            # For the parser, which ends with an error of its own.
            raise ValueError("the headers are too large")

    def _refuse_headers(self) -> None:
        if any(not each.response_complete for each in self._cycles):
            self.transport.abort()  # an answer would come into the middle of another
            return
        error = HttpError(
            431,
            f"the request line and headers may have {MAX_HEADER_BYTES} bytes together",
            code="headers_too_large",
        )
        self._write_refusal(b"431 Request Header Fields Too Large", error)
        self.linger()

    def _write_refusal(self, status: bytes, error: HttpError) -> None:
        body = error.body("openai")
        self.transport.write(_REFUSAL % (status, len(body), body))

    def _watch_unsent(self, before: int | None = None) -> None:
        """To close in order waits for the client to read, and the kernel has no limit for a Unix socket."""
        if self._unsent_timer is not None:
            self._unsent_timer.cancel()
        waiting = self.transport.get_write_buffer_size()
        if not waiting or not self.cycle.response_complete:  # one that goes on has its own limit
            return
        if before is not None and waiting >= before:
            self._give_up()
        else:
            self._unsent_timer = self.loop.call_later(UNSENT_S, self._watch_unsent, waiting)

    def _expect_headers(self) -> None:
        self._stop_timer()
        self._in_headers = True
        self._headers_timer = self.loop.call_later(HEADERS_TIMEOUT_S, self._give_up)

    def _give_up(self) -> None:
        self.transport.abort()

    def _stop_timer(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None


class _ResponseTransport(asyncio.Transport):
    """What one response is written to; closing it lets the client hear it first."""

    def __init__(self, protocol: GatewayProtocol, cycle: RequestResponseCycle) -> None:
        super().__init__()
        self._protocol = protocol
        self._cycle = cycle

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Called by uvicorn."""
        self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        """Called by uvicorn."""
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        """Called by uvicorn."""
        if self._cycle.more_body and not self._protocol.transport.is_closing():
            self._protocol.linger()
        else:
            self._protocol.transport.close()


def http_config(app: ASGIApp) -> uvicorn.Config:
    """uvicorn's settings for this application, loaded."""
    options: dict[str, Any] = {
        "http": "httptools",
        "ws": "none",
        "lifespan": "off",
        "access_log": False,
        "log_config": None,
        "proxy_headers": False,
        "server_header": False,
        "date_header": False,
        "timeout_keep_alive": KEEP_ALIVE_S,
    }
    config = uvicorn.Config(app, **options)
    config.load()
    return config
