"""What a client's link knows, for threads and asyncio alike: where it is connected and where it was."""

from pathlib import Path
from typing import Generic, Protocol, TypeGuard, TypeVar

from pillion.runtime.connection_end import ConnectionLost
from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.link_options import LinkOptions
from pillion.runtime.replicas import Replicas


class LinkedConnection(Protocol):
    """What a link asks of its connections."""

    is_ending: bool

    @property
    def lost(self) -> ConnectionLost | None: ...
    @property
    def is_idle(self) -> bool: ...
    def close(self) -> None: ...


C = TypeVar("C", bound=LinkedConnection)


class Link(Generic[C]):
    """One living connection at most that takes new requests.

    What a daemon that is ending lets finish stays on the connection that it has. To connect is the subclasses' part.
    """

    def __init__(self, options: LinkOptions) -> None:
        self._options = options
        self._replicas = Replicas(options.paths)
        self._connection: C | None = None
        self._left: list[C] = []
        self._closed = False

    @property
    def path(self) -> Path:
        """The socket of the daemon that is used now, or would be."""
        return self._replicas.path

    def _takes_requests(self, connection: C | None) -> TypeGuard[C]:
        """Whether it is there and lives, so that no other is to be looked for."""
        return not (
            connection is None
            or self._closed
            or connection.is_ending
            or connection.lost is not None
        )

    def _leave(self, connection: C) -> None:
        """New requests go elsewhere."""
        self._replicas.leave()
        self._connection = None
        self._left = [left for left in self._left if left.lost is None]
        if connection.is_idle:
            connection.close()
        else:
            self._left.append(connection)

    def _hang_up(self) -> None:
        for connection in (self._connection, *self._left):
            if connection is not None:
                connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise DaemonUnavailable("this client was closed")
