"""Tells an actor that hangs from one that is slow or has nothing to do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pillion.runtime.clock import NS_PER_S
from pillion.runtime.progress import Sign

LOOKS_PER_LIMIT: Final = 4
MAX_INTERVAL_S: Final = 0.5
TURNS_PER_LIMIT: Final = 4
MAX_SLEEP_S: Final = 2.5


def look_interval_s(stall_limit_s: float) -> float:
    """How often the launcher looks: a hang is found this much later than the limit at most."""
    return min(stall_limit_s / LOOKS_PER_LIMIT, MAX_INTERVAL_S)


def longest_sleep_ns(stall_limit_s: float) -> int:
    """How long a loop with nothing to do may sleep before it shows that it lives."""
    return int(min(stall_limit_s / TURNS_PER_LIMIT, MAX_SLEEP_S) * NS_PER_S)


@dataclass(frozen=True, slots=True)
class Hang:
    """Why an actor is taken for hung."""

    reason: str
    is_own: bool = False  # nobody has stopped it: what it was doing may be to blame


@dataclass(slots=True)
class _Watched:
    """An actor's life, and since when its sign has been the same, on the watchdog's own clock."""

    epoch: int
    sign: Sign
    since_ns: int


class Watchdog:
    """Compares what is read with what was read before.

    Its clock runs only while it looks: time in which the launcher itself was stopped, as in a machine that is
    suspended, is no time in which an actor could have shown progress.
    """

    def __init__(
        self, stall_limit_s: float, step_limit_s: float, is_stopped: Callable[[int], bool]
    ) -> None:
        self._stall_limit_s = stall_limit_s
        self._step_limit_s = step_limit_s
        self._is_stopped = is_stopped
        self._longest_gap_ns = int(2 * look_interval_s(stall_limit_s) * NS_PER_S)
        self._clock_ns = 0
        self._last_look_ns: int | None = None
        self._watched: dict[str, _Watched] = {}

    def begin_look(self, now_ns: int) -> None:
        """Before the actors are looked at in turn."""
        if self._last_look_ns is not None:
            self._clock_ns += min(now_ns - self._last_look_ns, self._longest_gap_ns)
        self._last_look_ns = now_ns

    def look(self, actor: str, epoch: int, pid: int, sign: Sign, *, starting: bool) -> Hang | None:
        """Returns None, or what is wrong with this actor. A start has a limit of its own, unless it is stopped."""
        watched = self._watched.get(actor)
        if watched is None or (watched.epoch, watched.sign) != (epoch, sign):
            self._watched[actor] = _Watched(epoch, sign, self._clock_ns)
            return None
        quiet_s = (self._clock_ns - watched.since_ns) / NS_PER_S
        if quiet_s <= self._stall_limit_s:
            return None
        if self._is_stopped(pid):
            return Hang(f"it is stopped and has made no progress for {quiet_s:.1f} s")
        if starting or (sign.in_step and quiet_s <= self._step_limit_s):
            return None
        if sign.in_step:
            limit_s = self._step_limit_s
            return Hang(f"its step has made no progress for step_limit_s = {limit_s:g} s", True)
        limit_s = self._stall_limit_s
        return Hang(f"its loop has not come round for stall_limit_s = {limit_s:g} s", True)
