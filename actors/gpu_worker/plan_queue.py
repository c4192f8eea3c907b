"""The scheduler's plans in the order in which they came, and whose turn it is."""

from collections import deque

from pillion.messages.steps import StepPlan
from pillion.runtime.errors import InvariantBroken


class PlanQueue:
    """Each plan is executed once, then again until the next one is there or its grant is used up."""

    def __init__(self) -> None:
        self.scheduler_epoch = 1
        self._waiting: deque[StepPlan] = deque()
        self._current: StepPlan | None = None
        self._executions = 0  # of _current
        self._last_plan_id: int | None = None
        self._awaits_fresh = False

    @property
    def has_newer(self) -> bool:
        """Whether a plan waits for its first execution."""
        return bool(self._waiting)

    @property
    def has_any(self) -> bool:
        """Whether a plan may be executed, as far as is known without its rows."""
        return self.has_newer or self._current is not None

    @property
    def repeats(self) -> bool:
        """Whether the next execution is one more of the plan that was executed last."""
        return not self._waiting and self._current is not None and self._executions > 0

    def adopt(self, epoch: int) -> bool:
        """Takes note of the scheduler's life; whether it is new, so that no plan is left."""
        if epoch <= self.scheduler_epoch:
            return False
        self.scheduler_epoch = epoch
        self._awaits_fresh = False
        self._clear()
        return True

    def add(self, plan: StepPlan) -> None:
        """A plan of the scheduler's current life has come. Raises InvariantBroken if one before it is missing."""
        if self._awaits_fresh and not plan.fresh:
            return
        self._awaits_fresh = False
        if self._last_plan_id is not None and plan.plan_id != self._last_plan_id + 1:
            raise InvariantBroken(f"plan {plan.plan_id} follows plan {self._last_plan_id}")
        self._last_plan_id = plan.plan_id
        self._waiting.append(plan)

    def turn(self) -> tuple[StepPlan, int] | None:
        """The plan to execute now, and how often it was; None if every plan had its turn and no grant is left."""
        if self._waiting:
            self._current, self._executions = self._waiting.popleft(), 0
        return None if self._current is None else (self._current, self._executions)

    def note_executed(self) -> None:
        """The plan whose turn it is was executed."""
        self._executions += 1
        if self._current is not None and self._executions >= self._current.repeat:
            self._current = None

    def end_grant(self) -> None:
        """Nothing that this plan names can go on before another plan says more."""
        self._current = None

    def await_fresh(self) -> None:
        """Forgets all plans, and those on their way that build on them."""
        self._clear()
        self._awaits_fresh = True

    def _clear(self) -> None:
        self._last_plan_id = None
        self._waiting.clear()
        self._current = None
