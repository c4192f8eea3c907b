"""Plans that the worker has not finished, and what they may still bring."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from pillion.actors.scheduler.sequence import Sequence
from pillion.runtime.errors import InvariantBroken


@dataclass(slots=True, eq=False)
class SentPlan:
    """What the scheduler must remember of a StepPlan until it is over."""

    plan_id: int
    repeat: int
    token_rows: list[Sequence]  # rows that sample a token in each execution
    # Prefill rows and the tokens whose KV is written when the plan is answered.
    prefill_rows: list[tuple[Sequence, int]] = field(default_factory=list)
    released: list[Sequence] = field(default_factory=list)
    num_answered: int = 0
    sent_ns: int = 0

    @property
    def num_steps_left(self) -> int:
        """Executions that may still be answered, at most."""
        return self.repeat - self.num_answered


class InFlight:
    """The plans from the oldest that may still run to the newest.

    Every plan runs at least once; a newer one ends the older one's grant at the next step boundary, so
    an answer to a plan says that all plans before it are over.
    """

    def __init__(self) -> None:
        self._plans: deque[SentPlan] = deque()
        self._num_unanswered = 0

    @property
    def num_unanswered(self) -> int:
        """Plans of which nothing has been heard."""
        return self._num_unanswered

    @property
    def num_steps_left(self) -> int:
        """Steps that the worker still has before it runs dry, as far as we know."""
        return self._num_unanswered + self.num_repeats_left

    @property
    def num_repeats_left(self) -> int:
        """Executions of the newest plan that a newer one would cut off."""
        if not self._plans:
            return 0
        newest = self._plans[-1]
        return newest.num_steps_left - (newest.num_answered == 0)

    @property
    def newest_repeat(self) -> int:
        """Steps that the newest plan granted; 0 without a plan."""
        return self._plans[-1].repeat if self._plans else 0

    @property
    def plans(self) -> Iterable[SentPlan]:
        """Those that may still run, the oldest first."""
        return self._plans

    def add(self, plan: SentPlan) -> None:
        """The plan was sent."""
        self._plans.append(plan)
        self._num_unanswered += 1

    def answer(self, plan_id: int, execution: int) -> SentPlan:
        """Takes note of one StepOutput. Raises InvariantBroken if it does not follow the one before."""
        while self._plans and self._plans[0].plan_id < plan_id and self._plans[0].num_answered:
            self._plans.popleft()
        plan = self._plans[0] if self._plans else None
        if plan is None or plan.plan_id != plan_id or plan.num_answered != execution:
            known = [(sent.plan_id, sent.num_answered, sent.repeat) for sent in self._plans]
            raise InvariantBroken(
                f"execution {execution} of plan {plan_id} was answered;"
                f" open plans (id, answered, repeat) are {known}"
            )
        if plan.num_answered == 0:
            self._num_unanswered -= 1
        plan.num_answered += 1
        if plan.num_answered == plan.repeat:
            self._plans.popleft()
        return plan

    def count_ahead(self, running: Iterable[Sequence]) -> None:
        """Writes: `min_ahead` and `max_ahead` of the running sequences."""
        for sequence in running:
            sequence.min_ahead = sequence.max_ahead = 0
        for plan in self._plans:
            least = 0 if plan.num_answered else 1
            most = plan.num_steps_left
            for sequence in plan.token_rows:
                # A row whose mask comes late brings nothing.
                sequence.min_ahead += 0 if sequence.sampling.needs_masks else least
                sequence.max_ahead += most

    def clear(self) -> list[Sequence]:
        """Forgets all plans, because their worker is gone; returns the sequences that they released."""
        released = [sequence for plan in self._plans for sequence in plan.released]
        self._plans.clear()
        self._num_unanswered = 0
        return released
