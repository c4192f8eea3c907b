"""The connections that come in through listening sockets."""

import asyncio
import logging
import socket
from typing import Final

from starlette.types import ASGIApp
from uvicorn.server import ServerState

from pillion.actors.gateway.http_protocol import GatewayProtocol, http_config
from pillion.actors.gateway.turned_away import TurnedAway
from pillion.runtime.http_sockets import BACKLOG
from pillion.runtime.inherited_sockets import open_inherited
from pillion.runtime.open_files import open_files_limit

# A peer that is gone without a word is noticed after about half a minute.
KEEP_ALIVE_IDLE_S: Final = 15
KEEP_ALIVE_INTERVAL_S: Final = 5
KEEP_ALIVE_PROBES: Final = 3
UNACKNOWLEDGED_LIMIT_MS: Final = 30_000
STOP_DEADLINE_S: Final = 5.0
# What a gateway has open besides its clients, those that it turns away included.
OTHER_FILES: Final = 64


class HttpServer:
    """Serves one application over any number of sockets."""

    def __init__(self, app: ASGIApp) -> None:
        # Each malformed request would be a line of the log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._config = http_config(app)
        self._state = ServerState()
        self._turned_away: set[TurnedAway] = set()
        self._most_connections = open_files_limit() - OTHER_FILES
        self._servers: list[asyncio.Server] = []

    async def listen(self, descriptor: int) -> socket.socket:
        """Serves a socket that listens already, perhaps for other processes too."""
        loop = asyncio.get_running_loop()
        listening = open_inherited(descriptor)
        if listening.family == socket.AF_UNIX:
            server = await loop.create_unix_server(self._protocol, sock=listening, backlog=BACKLOG)
        else:
            _notice_gone_peers(listening)
            server = await loop.create_server(self._protocol, sock=listening, backlog=BACKLOG)
        self._servers.append(server)
        return listening

    async def close(self) -> None:
        """Takes no more connections, lets open responses end, then closes what is left."""
        for server in self._servers:
            server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=STOP_DEADLINE_S)
        for connection in list(self._state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.close()
        # One turn of the loop, for transports whose last bytes fit into the kernel's buffers.
        await asyncio.sleep(0)

    def _protocol(self) -> GatewayProtocol | TurnedAway:
        if len(self._state.connections) >= self._most_connections:
            return TurnedAway(self._most_connections, self._turned_away)
        return GatewayProtocol(self._config, self._state)


def _notice_gone_peers(listening: socket.socket) -> None:
    """Sets what the connections of a TCP socket inherit from it."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_IDLE_S)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_ALIVE_INTERVAL_S)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEP_ALIVE_PROBES)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_LIMIT_MS)
