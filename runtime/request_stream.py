"""The replies to one request as an iterator, for threads."""

from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

from pillion.messages.text import GenerateRequest
from pillion.runtime.client_connection import Connection, ConnectionLost, Reply
from pillion.runtime.client_requests import guard_ns, no_answer
from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.outputs import RequestOutput
from pillion.runtime.request_assembly import RequestAssembly


def receive(
    replies: "SimpleQueue[Reply]", connection: Connection, until_ns: int | None
) -> Reply | None:
    """The next reply, or None when `until_ns` has come. Raises DaemonUnavailable on a lost connection."""
    # Read before the queue: a reply that is there counts, also when the connection is lost since. After
    # a fork nobody would fill the queue any more.
    lost = connection.lost
    try:
        reply = replies.get_nowait()
    except Empty:
        if lost is not None:
            raise DaemonUnavailable(lost) from None
        timeout = None if until_ns is None else max(0.0, (until_ns - now_ns()) / NS_PER_S)
        try:
            reply = replies.get(timeout=timeout)
        except Empty:
            return None
    if isinstance(reply, ConnectionLost):
        raise DaemonUnavailable(reply.reason)
    return reply


class RequestStream:
    """Iterates over what is new of an answer; `output` is the answer so far.

    Closing it, leaving its `with` block or dropping it cancels the request in the daemon. Not to be shared
    by threads. Raises RequestError when the request fails and DaemonUnavailable when the daemon is lost.
    """

    def __init__(self, owner: object, connection: Connection, request: GenerateRequest) -> None:
        self._owner = owner  # its end would close the connection
        self._connection = connection
        self._request_id = request.client_request_id
        self._deadline_ms = request.deadline_ms
        self._guard_ns = guard_ns(request.deadline_ms, now_ns())
        params = request.sampling_params
        self._assembly = RequestAssembly(
            self._request_id, params.n if params else 1, request.prompt
        )
        self._replies: SimpleQueue[Reply] = SimpleQueue()
        self._open = True
        try:
            connection.submit(self._request_id, request, self._replies.put)
        except BaseException:
            self._open = False
            raise

    @property
    def output(self) -> RequestOutput:
        """Everything received so far."""
        return self._assembly.output

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RequestOutput:
        if not self._open:
            raise StopIteration
        try:
            reply = receive(self._replies, self._connection, self._guard_ns)
            if reply is None:
                raise no_answer(self._deadline_ms)
            new = self._assembly.take(reply)
        except BaseException:  # an interrupt too ends the iteration, and with it the request
            self.close()
            raise
        if self._assembly.ended:
            self.close()
        return new

    def close(self) -> None:
        """Cancels the request unless it has ended."""
        if not self._open:
            return
        self._open = False
        if self._assembly.ended:
            self._connection.forget(self._request_id)
        else:
            self._connection.cancel(self._request_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self._connection.cancel_soon(self._request_id)
