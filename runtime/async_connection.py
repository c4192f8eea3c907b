"""One connection to a daemon's text edge on an asyncio loop."""

import asyncio
import os
import socket
import weakref
from pathlib import Path
from typing import Final, cast

import msgspec

from pillion.messages.codec import Codec
from pillion.messages.inboxes import DaemonToClient
from pillion.messages.text import CancelRequest, RequestFailed, Welcome
from pillion.runtime.client_requests import encode_frame
from pillion.runtime.connection_end import (
    ABANDONED,
    CLOSED,
    HUNG_UP,
    ConnectionLost,
    Sink,
    connection_failed,
    is_ending,
    not_understood,
)
from pillion.runtime.daemon_socket import connect_failure
from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.frame_buffer import FrameBuffer
from pillion.runtime.greeting import check_welcome, hello_frame

_BACKLOG_RETRY_S: Final = 0.01
# asyncio's own buffer is so large that the system gives its memory anew each time.
_RECEIVE_BYTES: Final = 64 * 1024


class AsyncConnection(asyncio.BufferedProtocol):
    """A greeted connection. Replies go to the sinks of their requests, on the loop's thread."""

    def __init__(self, leaves_ending: bool) -> None:
        """Use `open`."""
        self.is_ending = False  # the daemon takes nothing new
        self._leaves_ending = leaves_ending
        self._codec: Codec[DaemonToClient] = Codec(DaemonToClient)
        self._frames = FrameBuffer()
        self._received = memoryview(bytearray(_RECEIVE_BYTES))
        self._sinks: dict[str, Sink] = {}
        self._lost: ConnectionLost | None = None
        self._loop = asyncio.get_running_loop()
        self._welcome: asyncio.Future[Welcome] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._socket: socket.socket | None = None

    @classmethod
    async def open(
        cls,
        path: Path,
        client_name: str,
        fairness_key: str,
        timeout_s: float,
        *,
        leaves_ending: bool = False,
    ) -> "AsyncConnection":
        """As `Connection`. Raises DaemonUnavailable after `timeout_s` at the latest."""
        loop = asyncio.get_running_loop()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            async with asyncio.timeout(timeout_s):
                await _connect(connection, os.fspath(path))
                _, self = await loop.create_unix_connection(
                    lambda: cls(leaves_ending), sock=connection
                )
        except OSError as error:  # TimeoutError is one
            connection.close()
            raise connect_failure(path, error) from error
        except BaseException:
            connection.close()
            raise
        self._socket = connection
        _open_connections.add(self)
        try:
            await self._greet(path, client_name, fairness_key, timeout_s)
        except BaseException:
            self.close()
            raise
        return self

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that this connection lives on."""
        return self._loop

    @property
    def lost(self) -> ConnectionLost | None:
        """How the connection has ended; None while it lives."""
        return self._lost

    @property
    def welcome(self) -> Welcome:
        """What the daemon said of itself."""
        return self._welcome.result()

    async def submit(self, request_id: str, message: msgspec.Struct, sink: Sink) -> None:
        """Sends a request whose replies go to `sink` until `forget`. Raises DaemonUnavailable."""
        data = encode_frame(message)
        await self._writable.wait()
        if self._lost is not None:
            raise self._lost.error()
        if self._transport is None:
            raise DaemonUnavailable("the connection is not open")
        self._sinks[request_id] = sink
        self._transport.write(data)

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for anything."""
        return not self._sinks

    def tell(self, message: msgspec.Struct) -> None:
        """Sends what nothing answers; it is lost with the connection."""
        if self._lost is None and self._transport is not None:
            self._transport.write(encode_frame(message))

    def forget(self, request_id: str) -> None:
        """Drops whatever else comes for a request."""
        self._sinks.pop(request_id, None)

    def cancel(self, request_id: str) -> None:
        """Forgets a request and has the daemon end it. Never raises: a lost connection cancels too."""
        self.forget(request_id)
        if self._lost is None and self._transport is not None:
            self._transport.write(encode_frame(CancelRequest(client_request_id=request_id)))

    def cancel_soon(self, request_id: str) -> None:
        """As `cancel`, from a destructor, which may run on any thread and in the middle of a write."""
        if self._lost is None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.cancel, request_id)

    def close(self) -> None:
        """Ends the connection; the daemon cancels what is open."""
        self._end(CLOSED)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by asyncio: where the next bytes go."""
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio: takes replies apart and hands them out."""
        try:
            for payload in self._frames.feed(self._received[:nbytes]):
                self._dispatch(self._codec.decode(payload))
        except (ValueError, msgspec.DecodeError) as error:
            self._end(not_understood(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._end(connection_failed(exc) if isinstance(exc, OSError) else HUNG_UP)

    def pause_writing(self) -> None:
        """Called by asyncio: the daemon reads more slowly than we send."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Called by asyncio."""
        self._writable.set()

    def _abandon_after_fork(self) -> None:
        # Only the descriptor may be touched: the transport's own close would reach into the parent's
        # selector, which both processes share.
        self._lost = ABANDONED
        self._sinks = {}
        if self._socket is not None:
            self._socket.close()

    async def _greet(
        self, path: Path, client_name: str, fairness_key: str, timeout_s: float
    ) -> None:
        if self._transport is not None:
            self._transport.write(hello_frame(client_name, fairness_key))
        try:
            async with asyncio.timeout(timeout_s):
                await self._welcome
        except TimeoutError as error:
            raise DaemonUnavailable(
                f"the daemon behind {path} did not answer within {timeout_s:g} s", may_pass=True
            ) from error

    def _dispatch(self, reply: DaemonToClient) -> None:
        if not self._welcome.done():
            try:
                self._welcome.set_result(check_welcome(reply))
            except Exception as error:  # whoever waits for the greeting gets it
                self._welcome.set_exception(error)
            return
        if isinstance(reply, Welcome):
            return
        if self._leaves_ending and is_ending(reply):
            self.is_ending = True
            self._refuse(reply)
            return
        sink = self._sinks.get(reply.client_request_id)
        if sink is not None:
            sink(reply)
        elif isinstance(reply, RequestFailed) and not reply.client_request_id:
            self._end(ConnectionLost(reply.message, final=True))

    def _refuse(self, reply: RequestFailed) -> None:
        sink = self._sinks.pop(reply.client_request_id, None)
        if sink is not None:
            sink(ConnectionLost(reply.message, refused=True))

    def _end(self, lost: ConnectionLost) -> None:
        if self._lost is not None:
            return
        self._lost = lost
        if not self._welcome.done():
            self._welcome.set_exception(lost.error())
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink(lost)
        self._writable.set()
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()


_open_connections: "weakref.WeakSet[AsyncConnection]" = weakref.WeakSet()


def _abandon_connections() -> None:
    for connection in list(_open_connections):
        connection._abandon_after_fork()


os.register_at_fork(after_in_child=_abandon_connections)


async def _connect(connection: socket.socket, path: str) -> None:
    # A Unix socket connects at once or, with a full backlog, not at all: there is nothing to be polled for,
    # and the loop's own sock_connect takes that case for a success.
    while True:
        try:
            connection.connect(path)
        except BlockingIOError:
            await asyncio.sleep(_BACKLOG_RETRY_S)
        else:
            return
