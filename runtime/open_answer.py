"""The answer to one request as far as it has come, for either kind of stream."""

from typing import Any, Generic, TypeVar

from pillion.messages.inboxes import DaemonToClient
from pillion.messages.text import GenerateRequest
from pillion.runtime.client_requests import guard_ns, no_answer
from pillion.runtime.outputs import RequestOutput
from pillion.runtime.pending_requests import PendingRequests
from pillion.runtime.request_assembly import RequestAssembly

E = TypeVar("E", bound=PendingRequests[Any])


class OpenAnswer(Generic[E]):
    """Puts replies together and cancels the request when nobody wants the rest."""

    def __init__(self, request: GenerateRequest, exchange: E, sent_ns: int) -> None:
        """The exchange has sent the request, at this time: the daemon is at work while this is made."""
        self._deadline_ms = request.deadline_ms
        self._guard_ns = guard_ns(request.deadline_ms, sent_ns)
        params = request.sampling_params
        self._assembly = RequestAssembly(
            request.client_request_id, params.n if params else 1, request.prompt, sent_ns
        )
        self._exchange = exchange
        self._open = True

    @property
    def output(self) -> RequestOutput:
        """Everything received so far."""
        return self._assembly.output

    def close(self) -> None:
        """Cancels the request unless it has ended."""
        if not self._open:
            return
        self._open = False
        if self._assembly.ended:
            self._exchange.forget(self._assembly.output.request_id)
        else:
            self._exchange.close()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self._exchange.close_soon()

    def _take(self, reply: DaemonToClient | None) -> RequestOutput:
        """What is new; None means that nothing came in time. Raises RequestError."""
        if reply is None:
            raise no_answer(self._deadline_ms)
        new = self._assembly.take(reply)
        if new.finished:
            self.close()
        return new
