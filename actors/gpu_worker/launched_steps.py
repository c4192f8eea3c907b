"""Steps that were launched and whose output has not been collected."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pillion.actors.gpu_worker.pending_output import PendingOutput, StepIdentity
from pillion.messages.steps import StepFailure, StepTimes


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """One of them."""

    identity: StepIdentity
    # [num_rows] int64
    sequence_ids: npt.NDArray[np.int64]
    pending: PendingOutput
    times: StepTimes | None = None
    failure: StepFailure | None = None  # it never ran, or not to its end
    executed_ns: int = 0  # when its forward pass was launched, if it has one


class LaunchedSteps:
    """The oldest is collected first."""

    def __init__(self) -> None:
        self._steps: deque[LaunchedStep] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def oldest(self) -> LaunchedStep | None:
        """The one to collect next."""
        return self._steps[0] if self._steps else None

    def add(self, step: LaunchedStep) -> None:
        """A step was launched."""
        self._steps.append(step)

    def drop_oldest(self) -> None:
        """The oldest was collected."""
        self._steps.popleft()

    def void(self) -> npt.NDArray[np.int64]:
        """None of them will be collected. Returns the sequences of their rows, [n] int64."""
        ids = [np.zeros(0, dtype=np.int64), *(step.sequence_ids for step in self._steps)]
        self._steps.clear()
        return np.concatenate(ids)
