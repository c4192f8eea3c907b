"""How often actors may die before the daemon gives up."""

from collections import defaultdict, deque

from pillion.runtime.clock import NS_PER_S


class RestartBudget:
    """Each actor may be restarted `max_restarts` times within any `period_s`."""

    def __init__(self, max_restarts: int, period_s: float) -> None:
        self._max_restarts = max_restarts
        self._period_s = period_s
        # Per actor, of the deaths within the period: when and how.
        self._deaths: defaultdict[str, deque[tuple[int, str]]] = defaultdict(deque)

    def spend(self, actor: str, how: str, now_ns: int) -> str | None:
        """Takes note of a death. Returns None if a restart is left, else a line that ends with the first cause."""
        deaths = self._deaths[actor]
        deaths.append((now_ns, how))
        while deaths[0][0] < now_ns - self._period_s * NS_PER_S:
            deaths.popleft()
        if len(deaths) <= self._max_restarts:
            return None
        first_cause = deaths[0][1]
        if len(deaths) == 1:
            return first_cause
        return (
            f"{actor} died {len(deaths)} times within restart_period_s = {self._period_s:g} s, "
            f"and first thus: {first_cause}"
        )
