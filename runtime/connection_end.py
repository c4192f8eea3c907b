"""How a connection to a daemon ends, and what goes to a request on it: replies, and its end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeGuard

from pillion.messages.inboxes import DaemonToClient
from pillion.messages.text import RequestFailed
from pillion.runtime.errors import DaemonUnavailable


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """Told to every open request when its connection ends.

    `final`: it was ended on purpose, or the other side makes no sense; another connection is no remedy.
    `refused`: the daemon is ending, and this client waits for the next one.
    """

    reason: str
    final: bool = False
    refused: bool = False

    def error(self) -> DaemonUnavailable:
        """The exception that tells a caller of it."""
        return DaemonUnavailable(self.reason, may_pass=not self.final)


CLOSED: Final = ConnectionLost("the client was closed", final=True)
ABANDONED: Final = ConnectionLost("the connection belongs to the parent process", final=True)
HUNG_UP: Final = ConnectionLost(
    "the daemon closed the connection: see `pillion status` and `pillion logs`"
)


def connection_failed(error: OSError) -> ConnectionLost:
    """The end that a socket's error brings."""
    return ConnectionLost(f"the connection to the daemon was lost: {error}")


def not_understood(error: Exception) -> ConnectionLost:
    """The end that a daemon's nonsense brings."""
    reason = f"the daemon sent something that this client does not understand: {error}"
    return ConnectionLost(reason, final=True)


def is_ending(reply: DaemonToClient) -> TypeGuard[RequestFailed]:
    """Whether this is how a daemon that ends answers what is open, and what still comes."""
    return isinstance(reply, RequestFailed) and reply.code == "unavailable"


Reply = DaemonToClient | ConnectionLost
Sink = Callable[[Reply], None]
