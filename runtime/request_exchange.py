"""The requests of one caller and their replies, on whichever connection carries them; for threads."""

from collections.abc import Callable
from queue import Empty, SimpleQueue

from pillion.messages.inboxes import DaemonToClient
from pillion.messages.text import GenerateRequest
from pillion.runtime.client_connection import Connection
from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.connection_end import ConnectionLost, Reply
from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.pending_requests import PendingRequests
from pillion.runtime.resumable import MAX_LOSSES, Question, lost_for_good


class RequestExchange(PendingRequests[Connection]):
    """Sends requests and receives their replies. After a lost connection it asks for the rest on another.

    Not to be shared by threads.
    """

    def __init__(
        self, connect: Callable[[int | None], Connection], max_losses: int = MAX_LOSSES
    ) -> None:
        """`connect` gives a living connection, at the latest at the time that it is told, or raises.

        A request that is lost more often than `max_losses` in a row (see `Resumable`) is given up.
        """
        super().__init__(max_losses)
        self._connect = connect
        # One for each connection: a late reply of a connection that is lost must not be taken for one of the
        # next connection's.
        self._replies: SimpleQueue[Reply] = SimpleQueue()

    def send(self, message: GenerateRequest | Question, until_ns: int | None = None) -> None:
        """Sends a request. Raises DaemonUnavailable, and InvalidRequest for what cannot be sent."""
        entry = self._entry(message)
        request_id = entry.request.client_request_id
        if self._connection is None:
            self._connection = self._connect(until_ns)
        self._open[request_id] = entry
        try:
            self._connection.submit(request_id, entry.request, self._replies.put)
        except DaemonUnavailable as error:
            self._attach_again(ConnectionLost(str(error), not error.may_pass), until_ns)
        except BaseException:
            self.forget(request_id)
            raise

    def receive(self, until_ns: int | None) -> DaemonToClient | None:
        """The next reply to any of the requests, or None when `until_ns` has come.

        Raises DaemonUnavailable when the connection was lost and no other can be had.
        """
        while isinstance(reply := self._next_reply(until_ns), ConnectionLost):
            self._attach_again(reply, until_ns)
        return None if reply is None else self._note(reply)

    def _next_reply(self, until_ns: int | None) -> Reply | None:
        # Read before the queue: a reply that is there counts, also when the connection is lost since. After
        # a fork nobody would fill the queue any more.
        lost = None if self._connection is None else self._connection.lost
        try:
            return self._replies.get_nowait()
        except Empty:
            if lost is not None:
                return lost
        timeout = None if until_ns is None else max(0.0, (until_ns - now_ns()) / NS_PER_S)
        try:
            return self._replies.get(timeout=timeout)
        except Empty:
            return None

    def _attach_again(self, lost: ConnectionLost, until_ns: int | None) -> None:
        """Sends everything that is open again, on a connection that stays alive as long as that takes."""
        while True:
            if lost.final:
                raise lost.error()
            try:
                connection = self._connect(until_ns)
            except DaemonUnavailable as error:
                raise lost_for_good(lost, error) from error
            self._move_to(connection)
            self._replies = SimpleQueue()
            try:
                for request_id, again in self._open_again(lost):
                    connection.submit(request_id, again, self._replies.put)
                return
            except DaemonUnavailable as error:
                lost = ConnectionLost(str(error), not error.may_pass)
