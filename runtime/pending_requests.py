"""What one caller has asked and has not been answered, and the connection that carries it."""

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from pillion.messages.inboxes import DaemonToClient
from pillion.messages.text import GenerateChunk, GenerateRequest, RequestFailed, Welcome
from pillion.runtime.clock import now_ns
from pillion.runtime.connection_end import ConnectionLost
from pillion.runtime.resumable import MAX_LOSSES, Ask, Question, Resumable, check_same_model


class Carrier(Protocol):
    """What a connection offers here, whoever reads it: a thread or an asyncio loop."""

    @property
    def welcome(self) -> Welcome: ...
    def forget(self, request_id: str) -> None: ...
    def cancel(self, request_id: str) -> None: ...
    def cancel_soon(self, request_id: str) -> None: ...


C = TypeVar("C", bound=Carrier)


class PendingRequests(Generic[C]):
    """Knows what is open and what has come of it. To send, to receive and to connect is its subclasses' part."""

    def __init__(self, max_losses: int = MAX_LOSSES) -> None:
        """A request that is lost more often than `max_losses` in a row (see `Resumable`) is given up."""
        self._max_losses = max_losses
        self._connection: C | None = None
        self._open: dict[str, Resumable | Question] = {}

    def forget(self, request_id: str) -> None:
        """The request is over."""
        self._open.pop(request_id, None)
        if self._connection is not None:
            self._connection.forget(request_id)

    def close(self) -> None:
        """Cancels what is open."""
        while self._open:
            request_id, _ = self._open.popitem()
            if self._connection is not None:
                self._connection.cancel(request_id)

    def close_soon(self) -> None:
        """As `close`, from a destructor."""
        while self._open:
            request_id, _ = self._open.popitem()
            if self._connection is not None:
                self._connection.cancel_soon(request_id)

    def _entry(self, message: GenerateRequest | Question) -> Resumable | Question:
        if isinstance(message, GenerateRequest):
            return Resumable(message, now_ns(), self._max_losses)
        return message

    def _note(self, reply: DaemonToClient) -> DaemonToClient:
        if isinstance(reply, GenerateChunk):
            entry = self._open.get(reply.client_request_id)
            if entry is not None:
                entry.note(reply)
        elif isinstance(reply, RequestFailed):
            self.forget(reply.client_request_id)
        return reply

    def _move_to(self, connection: C) -> None:
        """This connection takes the lost one's place. Raises DaemonUnavailable if it serves another model."""
        old = self._connection
        if old is not None:
            check_same_model(old.welcome.model_name, connection.welcome)
            if old is not connection:
                for request_id in self._open:  # of a daemon that is ending they may still run
                    old.cancel(request_id)
        self._connection = connection

    def _open_again(self, lost: ConnectionLost) -> Iterator[tuple[str, GenerateRequest | Ask]]:
        """The id of each open request and what asks for the rest. Raises DaemonUnavailable."""
        for request_id, entry in list(self._open.items()):
            yield request_id, entry.again(lost, now_ns())
