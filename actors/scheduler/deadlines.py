"""When requests run out of time."""

from heapq import heapify, heappop, heappush
from typing import Final

from pillion.actors.scheduler.sequence import Request

_MIN_STALE_ENTRIES: Final = 64


class Deadlines:
    """Open requests that have a deadline, the next one first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Request]] = []  # deadline, serial number, request
        self._last_serial = 0
        self._num_stale = 0  # entries of requests that ended before their time

    def __len__(self) -> int:
        """Entries kept, stale ones included."""
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Remembers the request's deadline, if it has one."""
        if request.deadline_ns is not None:
            self._last_serial += 1
            heappush(self._heap, (request.deadline_ns, self._last_serial, request))

    def discard(self, request: Request) -> None:
        """The last of its sequences was closed: its entry goes when it comes up, or with half of all."""
        if request.deadline_ns is None:
            return
        self._num_stale += 1
        if self._num_stale > len(self._heap) // 2 + _MIN_STALE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[2].open_sequences]
            heapify(self._heap)
            self._num_stale = 0

    def next_ns(self) -> int | None:
        """The next deadline of an open request."""
        while self._heap and not self._heap[0][2].open_sequences:
            heappop(self._heap)
            self._num_stale -= 1
        return self._heap[0][0] if self._heap else None

    def due(self, now_ns: int) -> Request | None:
        """A request whose deadline has come. It stays until its sequences are closed."""
        next_ns = self.next_ns()
        return self._heap[0][2] if next_ns is not None and next_ns <= now_ns else None
