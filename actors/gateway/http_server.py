"""The listening sockets and the connections that come in through them."""

import asyncio
import contextlib
import logging
import os
import socket
from pathlib import Path
from typing import Any, Final

from starlette.types import ASGIApp
from uvicorn.server import ServerState

from pillion.actors.gateway.http_protocol import GatewayProtocol, http_config
from pillion.runtime.errors import ConfigError
from pillion.runtime.http_settings import remove_http_socket
from pillion.runtime.inherited_sockets import address_of, open_inherited
from pillion.runtime.paths import claim_socket_path

BACKLOG: Final = 2048
SOCKET_MODE: Final = 0o660  # the user and the group, as processes that share a directory need
# A peer that is gone without a word is noticed after about half a minute.
KEEP_ALIVE_IDLE_S: Final = 15
KEEP_ALIVE_INTERVAL_S: Final = 5
KEEP_ALIVE_PROBES: Final = 3
UNACKNOWLEDGED_LIMIT_MS: Final = 30_000
STOP_DEADLINE_S: Final = 5.0


class HttpServer:
    """Serves one application over any number of sockets."""

    def __init__(self, app: ASGIApp) -> None:
        # Each malformed request would be a line of the log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._config = http_config(app)
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._socket_path: Path | None = None

    async def listen_tcp(self, host: str, port: int) -> str:
        """Listens on every address of this host. Returns the URL. Raises ConfigError."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(found):
                # With port 0 the first address chooses for the others.
                bound = _bind(family, (address[0], port, *address[2:]))
                port = bound.getsockname()[1]
                self._servers.append(
                    await loop.create_server(self._protocol, sock=bound, backlog=BACKLOG)
                )
        except OSError as error:
            raise ConfigError(f"http: cannot listen on {host}:{port}: {error}") from error
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def listen_unix(self, path: Path) -> None:
        """Listens on a Unix socket. Raises ConfigError if the path is taken or unusable."""
        claim_socket_path(path)
        loop = asyncio.get_running_loop()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(os.fspath(path))
            path.chmod(SOCKET_MODE)
        except OSError as error:
            listening.close()
            raise ConfigError(f"http_uds: cannot listen on {path}: {error}") from error
        self._socket_path = path
        self._servers.append(
            await loop.create_unix_server(self._protocol, sock=listening, backlog=BACKLOG)
        )

    async def listen_inherited(self, descriptor: int) -> str:
        """Serves a socket that listens already; its file is not ours to remove. Returns its address."""
        loop = asyncio.get_running_loop()
        listening = open_inherited(descriptor)
        if listening.family == socket.AF_UNIX:
            server = await loop.create_unix_server(self._protocol, sock=listening, backlog=BACKLOG)
        else:
            _notice_gone_peers(listening)
            server = await loop.create_server(self._protocol, sock=listening, backlog=BACKLOG)
        self._servers.append(server)
        return address_of(listening)

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
        if self._socket_path is not None:
            with contextlib.suppress(OSError):
                remove_http_socket(self._socket_path)

    def _protocol(self) -> GatewayProtocol:
        return GatewayProtocol(self._config, self._state)


def _bind(family: int, address: tuple[Any, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        _notice_gone_peers(listening)
        listening.bind(address)
    except BaseException:
        listening.close()
        raise
    return listening


def _notice_gone_peers(listening: socket.socket) -> None:
    """Sets what the connections of a TCP socket inherit from it."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_IDLE_S)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_ALIVE_INTERVAL_S)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEP_ALIVE_PROBES)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_LIMIT_MS)
