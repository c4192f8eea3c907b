"""The decode rows that a plan's repeats run: chosen once, and again only when something has happened to a slot."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from pillion.actors.gpu_worker.plan_rows import PlanRows
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.messages.steps import StepPlan


@dataclass(slots=True)
class DecodeRepeat:
    """Rows that all go on. Those that a choice has left out never come back within the same plan."""

    plan: StepPlan
    rows: PlanRows
    # [max_num_seqs] int64; 1 for the slots of the rows, 0 for others
    advance_np: npt.NDArray[np.int64]
    num_left: int  # steps until the blocks of a row are full
    num_changes: int  # of the states, as the rows were chosen

    @classmethod
    def of(
        cls,
        plan: StepPlan,
        rows: PlanRows,
        states: RequestStates,
        capacity_np: npt.NDArray[np.int64],
    ) -> Self:
        """Of rows that were chosen just now; capacity_np [max_num_seqs]: tokens that each slot has blocks for."""
        slots = rows.decode_slots
        advance_np = np.zeros(states.max_num_seqs, dtype=np.int64)
        advance_np[slots] = 1
        room = capacity_np[slots] - states.num_computed_np[slots]
        num_left = int(room.min()) if len(slots) else 0
        return cls(plan, rows, advance_np, num_left, states.num_changes)

    def goes_on(self, plan: StepPlan, states: RequestStates) -> bool:
        """Whether a choice of this plan's rows would find the same."""
        return plan is self.plan and self.num_left > 0 and states.num_changes == self.num_changes

    def count_step(self, states: RequestStates) -> None:
        """A step of the rows was prepared. Writes: the states' counters, as if no row finished."""
        states.num_computed_np += self.advance_np
        states.num_known_np += self.advance_np
        self.num_left -= 1
