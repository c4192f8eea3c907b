"""What the actors have reported: the latest of each, its growth, and the sums over all its lives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pillion.messages.control import ActorStats, ActorTotals, HistogramCounts
from pillion.runtime.counter_rates import CounterRates

Number = TypeVar("Number", int, int | float)


@dataclass(slots=True)
class _Life:
    """What one life of an actor has reported."""

    latest: ActorStats
    rates: CounterRates = field(default_factory=CounterRates)


class StatsBook:
    """A life that has ended keeps what it has reported last, so that no sum ever shrinks."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._past: dict[str, ActorTotals] = {}

    def note(self, stats: ActorStats, *, in_turn: bool = True) -> None:
        """An actor reports, in its turn or before. A report that was overtaken by a later one changes no number."""
        life = self._lives.get(stats.actor)
        if life is not None and stats.epoch < life.latest.epoch:
            return
        if life is None or stats.epoch > life.latest.epoch:
            self._past[stats.actor] = self.totals(stats.actor)
            life = self._lives[stats.actor] = _Life(stats)
        if stats.time_ns >= life.latest.time_ns:
            life.latest = stats
        if in_turn:
            life.rates.note(stats.counters, stats.time_ns)

    def latest(self, actor: str, epoch: int) -> ActorStats | None:
        """The latest report of this life."""
        life = self._lives.get(actor)
        return life.latest if life is not None and life.latest.epoch == epoch else None

    def rates(self, actor: str, epoch: int, now_ns: int) -> dict[str, float]:
        """How fast the counters of this life grow."""
        life = self._lives.get(actor)
        return life.rates.at(now_ns) if life is not None and life.latest.epoch == epoch else {}

    def totals(self, actor: str) -> ActorTotals:
        """Of all lives."""
        past, life = self._past.get(actor, ActorTotals()), self._lives.get(actor)
        if life is None:
            return past
        latest = life.latest
        present = ActorTotals(
            counters=latest.counters, tallies=latest.tallies, histograms=latest.histograms
        )
        return added(past, present)


def added(first: ActorTotals, second: ActorTotals) -> ActorTotals:
    """The sums of both."""
    return ActorTotals(
        counters=_sums(first.counters, second.counters),
        tallies=first.tallies
        | {
            name: _sums(first.tallies.get(name, {}), tally)
            for name, tally in second.tallies.items()
        },
        histograms=first.histograms
        | {
            name: _joined(first.histograms.get(name), counts)
            for name, counts in second.histograms.items()
        },
    )


def _sums(first: Mapping[str, Number], second: Mapping[str, Number]) -> dict[str, Number]:
    return {**first, **{name: first.get(name, 0) + value for name, value in second.items()}}


def _joined(first: HistogramCounts | None, second: HistogramCounts) -> HistogramCounts:
    """Of two that have the same bounds, as all histograms of one name have in one version."""
    if first is None or first.bounds != second.bounds:
        return second
    return HistogramCounts(
        bounds=second.bounds,
        counts=[one + other for one, other in zip(first.counts, second.counts, strict=True)],
        total=first.total + second.total,
    )
