"""What ends a daemon: a wish or a failure, and which of them comes first."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from pillion.runtime.child import Child


@dataclass(frozen=True, slots=True)
class Stop:
    """Somebody wants the daemon to end."""

    drain_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The daemon cannot go on: a child that failed, or what went wrong in the launcher itself."""

    cause: Child | str

    @property
    def message(self) -> str:
        """One line, as known so far."""
        return self.cause if isinstance(self.cause, str) else self.cause.how_it_ended()


Ending = Stop | Failure


class Endings:
    """The endings that have come, in their order."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Ending] = asyncio.Queue()
        self.any_came = False

    def put(self, ending: Ending) -> None:
        """One more."""
        self.any_came = True
        self._queue.put_nowait(ending)

    async def next(self) -> Ending:
        """Waits for one."""
        return await self._queue.get()

    async def unless_one_comes(
        self, work: Coroutine[Any, Any, Any], timeout_s: float
    ) -> Ending | None:
        """Does this work for at most that long. Returns the ending that cut it short, if one did."""
        working = asyncio.ensure_future(work)
        interrupted = asyncio.ensure_future(self._queue.get())
        await asyncio.wait(
            (working, interrupted), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        working.cancel()
        if interrupted.done():
            return interrupted.result()
        interrupted.cancel()
        return None
