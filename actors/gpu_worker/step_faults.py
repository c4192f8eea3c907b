"""A step that failed: what is said of it, and whose it was."""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from pillion.actors.gpu_worker.plan_rows import PlanRows
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.messages.steps import StepFailure, StepPlan

MAX_MESSAGE_CHARS: Final = 300
# So many failed steps in a row are a reason to ask whether any step would come out well.
MANY_FAILED_STEPS: Final = 8


class DeviceLost(RuntimeError):
    """The device's context is broken: nothing in this process can use it again."""


class EveryStepFails(RuntimeError):
    """It is not the doing of those that asked for the steps: one with known input fails as well."""


class FailedSteps:
    """Those in a row, without one between them that came out well.

    `self_test` runs a step with known input and returns what went wrong; it wants the tables empty.
    """

    def __init__(self, self_test: Callable[[], str | None] | None) -> None:
        self._self_test = self_test
        self._num_failed = 0
        self._first_message = ""

    def end_row(self) -> None:
        """A step came out well."""
        self._num_failed = 0

    def add(self, message: str) -> EveryStepFails | None:
        """A step has failed. Returns an error that names the first cause if all others would."""
        if not self._num_failed:
            self._first_message = message
        self._num_failed += 1
        if self._self_test is None or self._num_failed % MANY_FAILED_STEPS:
            return None
        trouble = self._self_test()
        if trouble is None:
            return None
        return EveryStepFails(
            f"{self._num_failed} steps in a row, the first thus: {self._first_message};"
            f" and one with known input: {trouble}"
        )


def rows_of(states: RequestStates, plan: StepPlan, rows: PlanRows | None) -> npt.NDArray[np.int64]:
    """The sequences of a step, [n] int64; of one that failed before its rows were known, all that it may have had."""
    if rows is None:
        new = np.array([new.sequence_id for new in plan.new_sequences], dtype=np.int64)
        if len(new):
            return new  # what went wrong is the doing of one of them
        slots = np.frombuffer(plan.slots, dtype=np.int32)
        slots = slots[states.generation_np[slots] == np.frombuffer(plan.generations, np.int32)]
    else:
        slots = np.concatenate([rows.decode_slots, rows.prefill_slots])
    return states.sequence_id_np.take(slots)


def failure_of(
    error: Exception, sequence_ids: npt.NDArray[np.int64], device_lost: bool
) -> StepFailure:
    """What the scheduler hears: the error in one line."""
    first_line = (str(error).strip() or "no message").splitlines()[0]
    return StepFailure(
        message=f"{type(error).__name__}: {first_line[:MAX_MESSAGE_CHARS]}",
        sequence_ids=np.unique(sequence_ids).tobytes(),
        device_lost=device_lost,
    )
