"""A DaemonStatus as the metrics read it: by actor, with zero for what was never reported."""

from collections.abc import Iterable
from functools import reduce

from pillion.messages.control import ActorStatus, ActorTotals, DaemonStatus, HistogramCounts
from pillion.runtime.http_settings import is_gateway
from pillion.runtime.stats_book import added


class DaemonNumbers:
    """Totals are those of all lives of an actor."""

    def __init__(self, status: DaemonStatus) -> None:
        self.status = status
        self._actors = {actor.name: actor for actor in status.actors}
        self.gateways = [actor for actor in status.actors if is_gateway(actor.name)]
        self.gateway_totals: ActorTotals = reduce(
            added, (gateway.totals for gateway in self.gateways), ActorTotals()
        )

    @property
    def engine_actors(self) -> Iterable[ActorStatus]:
        """All but the gateways, whose numbers are added up."""
        return (actor for actor in self.status.actors if not is_gateway(actor.name))

    def total(self, actor: str, counter: str) -> int | float:
        """A counter of one actor."""
        return self._totals(actor).counters.get(counter, 0)

    def tally(self, actor: str, name: str) -> dict[str, int]:
        """Counters of one kind."""
        return self._totals(actor).tallies.get(name, {})

    def histogram(self, actor: str, name: str) -> HistogramCounts | None:
        """None before the actor's first report."""
        return self._totals(actor).histograms.get(name)

    def gauge(self, actor: str, name: str) -> float:
        """A gauge of an actor's present life."""
        return self.gauges(actor).get(name, 0.0)

    def gauges(self, actor: str) -> dict[str, float]:
        """All of them that are numbers; none of an actor that is dead."""
        found = self._actors.get(actor)
        gauges = {} if found is None or found.pid is None else found.gauges
        return {name: value for name, value in gauges.items() if not isinstance(value, str)}

    def _totals(self, actor: str) -> ActorTotals:
        found = self._actors.get(actor)
        return ActorTotals() if found is None else found.totals
