"""Replies on their way from a connection to the task that waits for them."""

import asyncio
from collections import deque

from pillion.runtime.connection_end import Reply


class ReplyQueue:
    """In the order in which they came; for one event loop.

    It does less than asyncio.Queue, since every piece of every answer goes through one.
    """

    __slots__ = ("_arrivals", "_replies")

    def __init__(self) -> None:
        self._replies: deque[Reply] = deque()
        self._arrivals: list[asyncio.Future[None]] = []

    def put(self, reply: Reply) -> None:
        """Adds one and wakes who waits: whoever comes first gets it."""
        self._replies.append(reply)
        if self._arrivals:
            arrivals, self._arrivals = self._arrivals, []
            for arrival in arrivals:
                if not arrival.done():  # else nobody waits any more
                    arrival.set_result(None)

    def get(self) -> Reply | None:
        """The next one, if it is there."""
        return self._replies.popleft() if self._replies else None

    def arrival(self) -> asyncio.Future[None]:
        """Done when another one has come."""
        arrival = asyncio.get_running_loop().create_future()
        if self._arrivals:
            self._arrivals = [other for other in self._arrivals if not other.done()]
        self._arrivals.append(arrival)
        return arrival
