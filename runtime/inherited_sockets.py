"""Sockets that listen already when the daemon starts: socket activation, as in sd_listen_fds(3)."""

import os
import socket
from collections.abc import Mapping
from typing import Final

from pillion.runtime.errors import ConfigError

FIRST_DESCRIPTOR: Final = 3
FAMILIES: Final = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


def inherited_sockets(environment: Mapping[str, str], pid: int) -> tuple[int, ...]:
    """The descriptors of the listening sockets that were handed to the process `pid`.

    Whatever comes is to serve HTTP. From here on children inherit only those that they are given. Raises
    ConfigError for a descriptor that is no listening socket.
    """
    if environment.get("LISTEN_PID") != str(pid):
        return ()
    count = environment.get("LISTEN_FDS", "0")
    if not (count.isascii() and count.isdigit()):
        raise ConfigError(f"LISTEN_FDS must be a number of descriptors, got {count!r:.80}")
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    descriptors = tuple(range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(count)))
    for place, descriptor in enumerate(descriptors):
        name = names[place] if place < len(names) and names[place] else "unnamed"
        _check(descriptor, f"the inherited descriptor {descriptor} ({name})")
        os.set_inheritable(descriptor, False)
    return descriptors


def open_inherited(descriptor: int) -> socket.socket:
    """The socket of an inherited descriptor, which is closed with it."""
    return socket.socket(fileno=descriptor)


def _check(descriptor: int, what: str) -> None:
    try:
        inherited = open_inherited(descriptor)
    except OSError as error:
        raise ConfigError(f"{what} is no socket: {error.strerror}") from error
    try:
        listens = inherited.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if inherited.family not in FAMILIES or not listens:
            raise ConfigError(
                f"{what} does not listen for TCP or Unix connections: "
                "the socket unit needs ListenStream= and Accept=no"
            )
    finally:
        inherited.detach()


def address_of(listening: socket.socket) -> str:
    """Where it listens, for a person: a URL, or the path or @name of a Unix socket."""
    name = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return "@" + name[1:].decode(errors="replace") if isinstance(name, bytes) else str(name)
    host, port = name[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
