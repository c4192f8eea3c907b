"""Deadlines of requests that the scheduler does not have yet: later it keeps them itself."""

import heapq
from collections.abc import Iterator, Mapping
from typing import Final

from pillion.actors.detokenizer.open_requests import OpenRequest
from pillion.messages.ids import RequestId

# Those of requests that are long over are swept out when there are more of them than of open ones.
_SPARE: Final = 64


class Deadlines:
    """In the order in which they come."""

    def __init__(self, requests: Mapping[RequestId, OpenRequest]) -> None:
        """`requests`: those that are open, whoever changes them."""
        self._requests = requests
        self._heap: list[tuple[int, RequestId]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline_ns: int, request_id: RequestId) -> None:
        """A request that came with a deadline."""
        heapq.heappush(self._heap, (deadline_ns, request_id))

    def passed(self, now_ns: int) -> Iterator[OpenRequest]:
        """Takes out the requests whose deadline has come; to be gone through to the end."""
        if len(self._heap) > 2 * len(self._requests) + _SPARE:
            self._heap = [each for each in self._heap if self._waiting(each[1]) is not None]
            heapq.heapify(self._heap)
        while self._heap:
            deadline_ns, request_id = self._heap[0]
            request = self._waiting(request_id)
            if request is not None and deadline_ns > now_ns:
                return
            heapq.heappop(self._heap)
            if request is not None:
                yield request

    @property
    def next_ns(self) -> int | None:
        """The next one, behind `passed`."""
        return self._heap[0][0] if self._heap else None

    def _waiting(self, request_id: RequestId) -> OpenRequest | None:
        request = self._requests.get(request_id)
        return None if request is None or request.admitted is not None else request
