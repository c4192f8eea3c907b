"""The sockets that the gateways serve. The launcher binds them, so that they outlive each gateway: connections
wait for the next one, and any number of gateways accept from the same queue."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import ConfigError
from pillion.runtime.http_settings import parse_http_address, remove_http_socket
from pillion.runtime.paths import claim_socket_path

BACKLOG: Final = 2048
SOCKET_MODE: Final = 0o660  # the user and the group, as processes that share a directory need


class HttpSockets:
    """Sockets that listen already, until they are closed; gateways have copies of their own."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Of all of them."""
        return tuple(listening.fileno() for listening in self._sockets)

    def close(self) -> None:
        """No gateway will begin any more: whoever connects when the last one is gone is refused."""
        for listening in self._sockets:
            listening.close()


@contextmanager
def http_sockets(config: EngineConfig) -> Iterator[HttpSockets]:
    """Listens where the configuration says. Raises ConfigError."""
    sockets: list[socket.socket] = []
    try:
        if config.http is not None:
            sockets += _listen_tcp(*parse_http_address(config.http))
        if config.http_uds is not None:
            sockets.append(_listen_unix(Path(config.http_uds)))
        yield HttpSockets(sockets)
    finally:
        for listening in sockets:
            listening.close()
        if config.http_uds is not None and any(each.family == socket.AF_UNIX for each in sockets):
            remove_http_socket(Path(config.http_uds))


def _listen_tcp(host: str, port: int) -> list[socket.socket]:
    """On every address of this host."""
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            # With port 0 the first address chooses for the others.
            sockets.append(_bound(family, (address[0], port, *address[2:])))
            port = sockets[-1].getsockname()[1]
    except OSError as error:
        for listening in sockets:
            listening.close()
        raise ConfigError(f"http: cannot listen on {host}:{port}: {error}") from error
    return sockets


def _bound(family: int, address: tuple[Any, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _listen_unix(path: Path) -> socket.socket:
    claim_socket_path(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(os.fspath(path))
        path.chmod(SOCKET_MODE)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(f"http_uds: cannot listen on {path}: {error}") from error
    return listening
