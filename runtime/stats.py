"""Counters and gauges on their way from an actor to `pillion status` and the metrics."""

from typing import Any, Final

from pillion.messages.control import ActorStats, Tally
from pillion.runtime.clock import NS_PER_S
from pillion.runtime.histogram import Histogram

STATS_INTERVAL_NS: Final = NS_PER_S


class StatsReporter:
    """Reports what a core's `counters` and `gauges` dicts hold, at most once a second and only if changed.

    With them go its `tallies` and `histograms`; neither changes without a counter. A core without these
    attributes has nothing to report.
    """

    def __init__(self, actor: str, epoch: int, core: Any) -> None:
        self._actor = actor
        self._epoch = epoch
        self._counters: dict[str, int | float] = getattr(core, "counters", {})
        self._gauges: dict[str, int | float | str] = getattr(core, "gauges", {})
        self._tallies: dict[str, Tally] = getattr(core, "tallies", {})
        self._histograms: dict[str, Histogram] = getattr(core, "histograms", {})
        self._sent: tuple[dict[str, int | float], dict[str, int | float | str]] = ({}, {})
        self._next_ns = 0

    def report(self, now_ns: int) -> tuple[ActorStats | None, int | None]:
        """After a turn of the loop: a message that is due, and when to ask again at the latest.

        The second value is None if nothing can have changed until the next turn.
        """
        if now_ns < self._next_ns:
            return None, self._next_ns
        if (self._counters, self._gauges) == self._sent:
            return None, None
        self._sent = (dict(self._counters), dict(self._gauges))
        self._next_ns = now_ns + STATS_INTERVAL_NS
        return self.at(now_ns), None

    def at(self, now_ns: int) -> ActorStats:
        """What there is to report, changed or not."""
        return ActorStats(
            actor=self._actor,
            epoch=self._epoch,
            counters=dict(self._counters),
            gauges=dict(self._gauges),
            tallies={name: dict(tally) for name, tally in self._tallies.items()},
            histograms={name: each.counts() for name, each in self._histograms.items()},
            time_ns=now_ns,
        )
