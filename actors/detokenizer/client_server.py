"""The socket on which clients meet the text edge."""

import asyncio
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, cast

import msgspec

from pillion.actors.detokenizer.text_edge import TextEdge
from pillion.messages.codec import frame
from pillion.messages.inboxes import DaemonToClient
from pillion.runtime.clock import now_ns
from pillion.runtime.frame_buffer import FrameBuffer
from pillion.runtime.paths import claim_socket_path, usable
from pillion.runtime.proc_files import has_argument, peer_pid

# What a socket holds of which its client has not read: some hundred chunks (the kernel takes twice as many bytes, for
# its own needs). A client for which more waits is slow. Its later chunks are merged, which lets it catch up, where it
# would have fallen behind by all that a larger buffer takes.
SENT_AHEAD_BYTES: Final = 32 * 1024
# A client that lets so much wait is not read from either: its requests would only add to it.
UNREAD_ABOVE_BYTES: Final = 1024 * 1024
# A connection that this side closes has so long to take what is still under way.
CLOSING_S: Final = 1.0


class ClientConnection(asyncio.Protocol):
    """One client's socket."""

    def __init__(self, server: "ClientServer", session_id: int) -> None:
        self._server = server
        self._session_id = session_id
        self._frames = FrameBuffer()
        self._transport: asyncio.Transport
        self._deaf = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is here."""
        self._transport = cast(asyncio.Transport, transport)
        connection = self._transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_AHEAD_BYTES)
        self._transport.set_write_buffer_limits(0)  # slow while the socket does not take all
        self._server.on_connected(self._session_id, self)

    def data_received(self, data: bytes) -> None:
        """Bytes of any number of frames."""
        if self._deaf:
            return
        edge = self._server.edge
        try:
            for payload in self._frames.feed(data):
                edge.on_frame(self._session_id, payload, now_ns())
        except ValueError as error:
            self._deaf = True
            edge.on_broken_framing(self._session_id, str(error))
        self._server.wake()

    def pause_writing(self) -> None:
        """The client takes less than it gets."""
        self._server.edge.on_slow(self._session_id, now_ns())
        self._server.wake()

    def resume_writing(self) -> None:
        """It has caught up."""
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self._server.edge.on_caught_up(self._session_id)
        self._server.wake()

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone, for whatever reason."""
        self._deaf = True
        self._server.on_lost(self._session_id)

    @property
    def peer_pid(self) -> int:
        """The client's process."""
        return peer_pid(self._transport.get_extra_info("socket"))

    def send(self, data: bytes) -> None:
        """Writes as much as the socket takes and keeps the rest."""
        if self._transport.is_closing():
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > UNREAD_ABOVE_BYTES:
            self._transport.pause_reading()

    def hang_up(self) -> None:
        """Closes the connection; what was written still leaves, if the client takes it soon."""
        self._deaf = True
        self._transport.close()
        asyncio.get_running_loop().call_later(CLOSING_S, self._transport.abort)

    def abort(self) -> None:
        """Closes the connection at once."""
        self._transport.abort()


class ClientServer:
    """Listens for clients and writes what the edge has for them, one write for each client and turn."""

    def __init__(self, edge: TextEdge, wake: Callable[[], None], actors_argument: str) -> None:
        """`actors_argument` is the word on the command lines of this daemon's actors: a gateway always has a place."""
        self.edge = edge
        self._actors_argument = actors_argument
        self.wake = wake  # asks for a turn of the loop
        self._connections: dict[int, ClientConnection] = {}
        self._server: asyncio.AbstractServer
        self._next_session_id = 1
        self._encoder = msgspec.msgpack.Encoder()
        self._empty = asyncio.Event()
        self._empty.set()

    async def listen(self, path: Path) -> None:
        """Binds the socket. Raises ConfigError if the path is too long, taken, or not a socket."""
        claim_socket_path(path)
        loop = asyncio.get_running_loop()
        with usable(path):
            self._server = await loop.create_unix_server(self._connect, str(path), backlog=1024)

    def send(self, replies: Iterable[tuple[int, DaemonToClient]]) -> None:
        """Writes replies; those for clients that are gone are dropped."""
        by_session: dict[int, list[bytes]] = {}
        encode = self._encoder.encode
        for session_id, message in replies:
            by_session.setdefault(session_id, []).append(frame(encode(message)))
        for session_id, frames in by_session.items():
            connection = self._connections.get(session_id)
            if connection is not None:
                connection.send(frames[0] if len(frames) == 1 else b"".join(frames))

    def hang_up(self, session_ids: Iterable[int]) -> None:
        """Closes these connections once what was written has left."""
        for session_id in session_ids:
            connection = self._connections.get(session_id)
            if connection is not None:
                connection.hang_up()

    def lose(self, session_id: int) -> None:
        """Closes a connection at once, with whatever has not left."""
        connection = self._connections.get(session_id)
        if connection is not None:
            connection.abort()

    async def close(self) -> None:
        """Stops listening, hangs up on everyone and waits until they have their last bytes."""
        self._server.close()
        self.hang_up(list(self._connections))
        await self._empty.wait()

    def on_connected(self, session_id: int, connection: ClientConnection) -> None:
        """A connection is there."""
        self._connections[session_id] = connection
        self._empty.clear()
        has_place = self.edge.sessions.is_full and has_argument(
            connection.peer_pid, self._actors_argument
        )
        self.edge.open_session(session_id, now_ns(), has_place)
        self.wake()

    def on_lost(self, session_id: int) -> None:
        """A connection is gone."""
        self._connections.pop(session_id, None)
        if not self._connections:
            self._empty.set()
        self.edge.close_session(session_id)
        self.wake()

    def _connect(self) -> ClientConnection:
        session_id = self._next_session_id
        self._next_session_id += 1
        return ClientConnection(self, session_id)
