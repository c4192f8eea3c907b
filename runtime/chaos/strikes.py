"""When which actor is killed or stopped: a schedule drawn from a seed, and whoever carries it out."""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pillion.messages.control import DaemonStatus
from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.errors import PillionError

# Of strikes that come while another one may still be repaired.
_DOUBLE_SHARE: Final = 0.12
_DOUBLE_WITHIN_S: Final = 1.5
_DELAY_S: Final = 0.5
# The worker takes by far the longest to come back, so it is struck less often.
_WEIGHTS: Final = {"gpu_worker": 1}
_OTHER_WEIGHT: Final = 2
_VICTIM_RETRY_S: Final = 0.05
_VICTIM_DEADLINE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Strike:
    """One blow: when so many requests have ended, and this much later."""

    after_requests: int
    delay_s: float
    actor: str
    stops: bool  # SIGSTOP in place of SIGKILL


@dataclass(frozen=True, slots=True)
class Blow:
    """A strike that was carried out."""

    actor: str
    stops: bool
    time_ns: int


def make_schedule(
    seed: int, count: int, num_requests: int, actors: Sequence[str], stop_share: float
) -> list[Strike]:
    """So many strikes, spread over the run; the same ones for the same seed."""
    chance = random.Random(f"strikes {seed}")
    weights = [_WEIGHTS.get(actor, _OTHER_WEIGHT) for actor in actors]
    strikes: list[Strike] = []
    for number in range(count):
        is_double = number > 0 and chance.random() < _DOUBLE_SHARE
        after = strikes[-1].after_requests if is_double else num_requests * number // count
        strikes.append(
            Strike(
                after_requests=after,
                delay_s=chance.uniform(0, _DOUBLE_WITHIN_S if is_double else _DELAY_S),
                actor=chance.choices(actors, weights)[0],
                stops=chance.random() < stop_share,
            )
        )
    return strikes


class Striker:
    """Carries a schedule out."""

    def __init__(
        self,
        schedule: Sequence[Strike],
        status: Callable[[], Awaitable[DaemonStatus]],
        wait_finished: Callable[[int], Awaitable[None]],
    ) -> None:
        """`wait_finished` waits until so many requests have ended."""
        self.blows: list[Blow] = []
        self._schedule = schedule
        self._status = status
        self._wait_finished = wait_finished

    async def run(self) -> None:
        """Strikes to the end of the schedule. Raises PillionError when an actor does not come back."""
        for strike in self._schedule:
            await self._wait_finished(strike.after_requests)
            await asyncio.sleep(strike.delay_s)
            await self._strike(strike)

    async def _strike(self, strike: Strike) -> None:
        number = signal.SIGSTOP if strike.stops else signal.SIGKILL
        deadline_ns = now_ns() + int(_VICTIM_DEADLINE_S * NS_PER_S)
        while now_ns() < deadline_ns:
            for actor in (await self._status()).actors:
                if actor.name != strike.actor or actor.pid is None:
                    continue
                # A start may take long, so nobody looks for one that hangs.
                states = ("running",) if strike.stops else ("starting", "running")
                # One that was struck before is not hit twice: the launcher has not found it yet.
                if actor.state in states and not _is_struck(actor.pid):
                    try:
                        os.kill(actor.pid, number)
                    except ProcessLookupError:
                        continue
                    self.blows.append(Blow(strike.actor, strike.stops, now_ns()))
                    return
            await asyncio.sleep(_VICTIM_RETRY_S)
        raise PillionError(f"{strike.actor} has not come back within {_VICTIM_DEADLINE_S:g} s")


def _is_struck(pid: int) -> bool:
    """Whether the process is stopped, or dead and not reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"T", b"Z", b"X")
    except (OSError, IndexError):
        return True
