"""How fast an actor's counters grow."""

from collections.abc import Mapping
from typing import Final

from pillion.runtime.clock import NS_PER_S
from pillion.runtime.stats import STATS_INTERVAL_NS

# An actor whose numbers change reports once an interval, so after two of them nothing has changed.
_SILENT_NS: Final = 2 * STATS_INTERVAL_NS


class CounterRates:
    """Growth per second between an actor's last two reports."""

    def __init__(self) -> None:
        self._counters: Mapping[str, int | float] = {}
        self._at_ns: int | None = None
        self._rates: dict[str, float] = {}

    def note(self, counters: Mapping[str, int | float], now_ns: int) -> None:
        """Takes a report of the same life; counters that were not there before began at 0."""
        if self._at_ns is not None and now_ns > self._at_ns:
            seconds = (now_ns - self._at_ns) / NS_PER_S
            self._rates = {
                name: (value - self._counters.get(name, 0)) / seconds
                for name, value in counters.items()
            }
        self._counters, self._at_ns = counters, now_ns

    def at(self, now_ns: int) -> dict[str, float]:
        """The rates now: 0 for an actor that has gone silent, none before its second report."""
        if self._at_ns is not None and now_ns - self._at_ns > _SILENT_NS:
            return dict.fromkeys(self._rates, 0.0)
        return self._rates
