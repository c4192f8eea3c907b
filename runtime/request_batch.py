"""Many requests as one call: order kept, a window in flight, refusals for lack of room tried again."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from pillion.messages.text import GenerateChunk, GenerateRequest, RequestFailed
from pillion.runtime.client_requests import error_of, guard_ns, no_answer
from pillion.runtime.clock import NS_PER_MS
from pillion.runtime.errors import RequestError
from pillion.runtime.outputs import RequestOutput
from pillion.runtime.request_assembly import RequestAssembly

DEFAULT_WINDOW: Final = 256
_DEFAULT_RETRY_MS: Final = 50


@dataclass(slots=True)
class _Entry:
    request: GenerateRequest
    assembly: RequestAssembly | None = None


class RequestBatch:
    """What to send next and what has come back. It sends nothing itself and reads no clock."""

    def __init__(
        self,
        requests: Sequence[GenerateRequest],
        now_ns: int,
        window: int = DEFAULT_WINDOW,
    ) -> None:
        """`window` requests at most are in flight. The first one's deadline is that of the whole batch."""
        self._deadline_ms = requests[0].deadline_ms if requests else None
        self._deadline_ns = (
            None if self._deadline_ms is None else now_ns + self._deadline_ms * NS_PER_MS
        )
        # When the caller gives up on the daemon; None: never.
        self.guard_ns = guard_ns(self._deadline_ms, now_ns)
        self._entries = [_Entry(request) for request in requests]
        self._waiting = deque(range(len(requests)))
        self._in_flight: dict[str, int] = {}
        self._max_window = max(1, window)
        self._window = self._max_window
        self._not_before_ns = 0
        self._num_finished = 0

    @property
    def finished(self) -> bool:
        """Whether every request has its answer."""
        return self._num_finished == len(self._entries)

    @property
    def outputs(self) -> list[RequestOutput]:
        """The answers, in the order of the requests; complete once `finished`."""
        return [entry.assembly.output for entry in self._entries if entry.assembly is not None]

    def next_request(self, now_ns: int) -> GenerateRequest | None:
        """A request that should be sent now, or None.

        Raises RequestError when the daemon has not ended the requests long after their deadline.
        """
        if self.guard_ns is not None and now_ns > self.guard_ns:
            raise no_answer(self._deadline_ms)
        if (
            not self._waiting
            or len(self._in_flight) >= self._window
            or now_ns < self._not_before_ns
        ):
            return None
        index = self._waiting.popleft()
        entry = self._entries[index]
        params = entry.request.sampling_params
        entry.assembly = RequestAssembly(
            entry.request.client_request_id, params.n if params else 1, entry.request.prompt
        )
        self._in_flight[entry.request.client_request_id] = index
        if self._deadline_ns is None:
            return entry.request
        remaining_ms = max(1, (self._deadline_ns - now_ns) // NS_PER_MS)
        return msgspec.structs.replace(entry.request, deadline_ms=remaining_ms)

    def wake_at_ns(self) -> int | None:
        """When `next_request` must be asked although no message came; None if only a message helps."""
        if not self._waiting or len(self._in_flight) >= self._window:
            return self.guard_ns
        return min(self._not_before_ns, self.guard_ns or self._not_before_ns)

    def on_reply(self, reply: object, now_ns: int) -> RequestOutput | None:
        """Takes an answer in; returns the request's whole output if that ended it.

        Raises RequestError, naming the prompt's index, if a request was refused for good.
        """
        if not isinstance(reply, GenerateChunk | RequestFailed):
            return None
        index = self._in_flight.get(reply.client_request_id)
        if index is None:
            return None
        if isinstance(reply, RequestFailed):
            self._on_failure(index, reply, now_ns)
            return None
        assembly = self._entries[index].assembly
        if assembly is None:
            return None
        try:
            assembly.add(reply)
        except RequestError as error:
            raise RequestError(f"prompt {index}: {error}", error.code) from error
        if not assembly.finished:
            return None
        del self._in_flight[reply.client_request_id]
        self._num_finished += 1
        self._window = min(self._max_window, self._window + 1)
        return assembly.output

    def _on_failure(self, index: int, failure: RequestFailed, now_ns: int) -> None:
        del self._in_flight[failure.client_request_id]
        if failure.code != "overloaded":
            raise error_of(failure, f"prompt {index}: ")
        # Other clients have filled the daemon: keep what is in flight as our share and come again.
        self._waiting.appendleft(index)
        self._window = max(1, len(self._in_flight))
        retry_ms = failure.retry_after_ms or _DEFAULT_RETRY_MS
        self._not_before_ns = now_ns + retry_ms * NS_PER_MS
