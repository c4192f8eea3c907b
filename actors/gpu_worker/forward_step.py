"""A step between its forward pass and its end, where rows may wait for their masks."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pillion.actors.gpu_worker.model_executor import ModelOutput
from pillion.actors.gpu_worker.pending_output import StepIdentity
from pillion.actors.gpu_worker.step_inputs import StepInputs
from pillion.messages.steps import StepTimes

# The weight of a new step in the average: slow against one odd step, quick against another kind of load.
_WEIGHT = 1 / 8
# A step that took so many times the average was not a step but a pause.
_PAUSE = 4


@dataclass(frozen=True, slots=True)
class ForwardStep:
    """One whose forward pass is launched."""

    identity: StepIdentity
    # [num_rows] int64
    sequence_ids: npt.NDArray[np.int64]
    num_rows: int
    inputs: StepInputs
    output: ModelOutput
    started_ns: int
    prepared_ns: int
    executed_ns: int

    def times(self, sampling_ns: int, launched_ns: int) -> StepTimes:
        """The step's end was launched between these two; what it waited before is nobody's work."""
        return StepTimes(
            prepare_ns=self.prepared_ns - self.started_ns,
            execute_ns=self.executed_ns - self.prepared_ns,
            output_ns=launched_ns - sampling_ns,
            num_prefill_tokens=self.inputs.num_prefill_tokens,
            num_decode_tokens=self.inputs.num_decode_rows,
        )


@dataclass(slots=True)
class MaskPatience:
    """How long the rows of a step that need a mask may hold up the end of the step for the others.

    Where launches only queue, the device computes for about as long as the last steps took, and a launch in
    the first half of that time is in time. Where a launch is the computation, there is none.
    """

    launches_queue: bool
    collected_ns: int = 0  # when the last step's answer was there, and with it the masks' causes
    _average_ns: float = field(default=0.0, init=False)

    def note_collected(self, executed_ns: int, now_ns: int) -> None:
        """A step was collected whose forward pass was launched then; the device may have been idle before."""
        took_ns = now_ns - max(executed_ns, self.collected_ns)
        self.collected_ns = now_ns
        average_ns = self._average_ns
        if average_ns:
            took_ns = min(took_ns, int(_PAUSE * average_ns))
            self._average_ns += (took_ns - average_ns) * _WEIGHT
        else:
            self._average_ns = float(took_ns)

    def is_over(self, forward: ForwardStep, now_ns: int) -> bool:
        """Whether the others have waited long enough."""
        if not self.launches_queue:
            return True
        began_ns = max(forward.executed_ns, self.collected_ns)
        return now_ns - began_ns >= self._average_ns / 2
