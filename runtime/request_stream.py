"""The replies to one request as an iterator, for threads."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from pillion.messages.text import GenerateRequest
from pillion.runtime.client_connection import Connection
from pillion.runtime.client_requests import guard_ns
from pillion.runtime.clock import now_ns
from pillion.runtime.open_answer import OpenAnswer
from pillion.runtime.outputs import RequestOutput
from pillion.runtime.request_exchange import RequestExchange
from pillion.runtime.resumable import MAX_LOSSES


class RequestStream(OpenAnswer[RequestExchange]):
    """Iterates over what is new of an answer; `output` is the answer so far.

    Closing it, leaving its `with` block or dropping it cancels the request in the daemon. Not to be shared
    by threads. When the connection is lost it goes on behind what has come, as soon as the daemon takes
    connections again. Raises RequestError when the request fails and DaemonUnavailable when the daemon is
    lost.
    """

    def __init__(
        self,
        connect: Callable[[int | None], Connection],
        request: GenerateRequest,
        max_losses: int = MAX_LOSSES,
    ) -> None:
        """Sends the request. Raises DaemonUnavailable."""
        sent_ns, exchange = now_ns(), RequestExchange(connect, max_losses)
        try:
            exchange.send(request, guard_ns(request.deadline_ms, sent_ns))
        except BaseException:
            exchange.close()
            raise
        super().__init__(request, exchange, sent_ns)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RequestOutput:
        if not self._open:
            raise StopIteration
        try:
            return self._take(self._exchange.receive(self._guard_ns))
        except BaseException:  # an interrupt too ends the iteration, and with it the request
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
