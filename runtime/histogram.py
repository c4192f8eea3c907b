"""How often which size: what Prometheus makes quantiles of."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from pillion.messages.control import HistogramCounts

# From a hop between two processes to a request that waits for minutes.
SECONDS: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip


class Histogram:
    """Observations, counted by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts an observation, or so many equal ones."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def counts(self) -> HistogramCounts:
        """All observations so far."""
        return HistogramCounts(bounds=self._bounds, counts=list(self._counts), total=self._total)
