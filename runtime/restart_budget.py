"""How often actors may die before the daemon gives up."""

from collections import defaultdict, deque
from typing import Final

from pillion.runtime.child import Child
from pillion.runtime.clock import NS_PER_S

WORKER: Final = "gpu_worker"
# Deaths for which a request may be to blame have a budget of their own, this many times as large.
BLAMELESS_FACTOR: Final = 10


class RestartBudget:
    """Each actor may be restarted `max_restarts` times within any `period_s`."""

    def __init__(self, max_restarts: int, period_s: float) -> None:
        self._max_restarts = max_restarts
        self._period_s = period_s
        # Per actor, of the deaths that count: when and how.
        self._deaths: defaultdict[str, deque[tuple[int, str]]] = defaultdict(deque)

    def spend(self, actor: str, how: str, now_ns: int, may_forget: bool = True) -> str | None:
        """Takes note of a death. Returns None if a restart is left, else a line that ends with the first cause.

        Those before the period are forgotten, if they may be.
        """
        deaths = self._deaths[actor]
        deaths.append((now_ns, how))
        while may_forget and deaths[0][0] < now_ns - self._period_s * NS_PER_S:
            deaths.popleft()
        if len(deaths) <= self._max_restarts:
            return None
        first_ns, first_cause = deaths[0]
        if len(deaths) == 1:
            return first_cause
        if first_ns < now_ns - self._period_s * NS_PER_S:
            within = "without a step between that came out well"
        else:
            within = f"within restart_period_s = {self._period_s:g} s"
        return f"{actor} died {len(deaths)} times {within}, and first thus: {first_cause}"


class Budgets:
    """A death that a request may have caused costs less than others."""

    def __init__(self, max_restarts: int, period_s: float) -> None:
        self._ordinary = RestartBudget(max_restarts, period_s)
        self._blameless = RestartBudget(max_restarts * BLAMELESS_FACTOR, period_s)

    def spend(self, dead: Child, has_worked: bool, now_ns: int) -> str | None:
        """Returns None if this actor may have another life, else why not.

        Only of a worker can be said whether it `has_worked`: whether a step came out well. As long as none does
        nothing is forgotten, for one that takes a minute to start would never die often enough.
        """
        budget = self._blameless if dead.is_blameless else self._ordinary
        may_forget = dead.name != WORKER or has_worked or not dead.ended_by_itself
        return budget.spend(dead.name, dead.how_it_ended(), now_ns, may_forget)
