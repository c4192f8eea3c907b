"""A step between its last launch and its answer."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from pillion.actors.gpu_worker.device import Download
from pillion.actors.gpu_worker.step_inputs import PromptLogprobRows

NO_ROWS: Final = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class StepIdentity:
    """Which execution of which plan a step is."""

    epoch: int
    step_id: int
    plan_id: int
    execution: int
    plan_epoch: int  # the scheduler's


@dataclass(frozen=True, slots=True)
class PendingOutput:
    """A step whose results are on their way to the host."""

    slots_np: npt.NDArray[np.int32]
    generations_np: npt.NDArray[np.int32]
    sequence_ids_np: npt.NDArray[np.int64]
    # [4, num_sample_rows] int32: token, position, finish code, whether the row counts; None without rows
    columns: Download | None = None
    # [m, 1 + num_top] ids and log-probabilities, [m] ranks of the rows in logprob_rows_np
    logprobs: Download | None = None
    logprob_rows_np: npt.NDArray[np.int32] = field(default_factory=lambda: NO_ROWS)
    # the captured step's: [1 + num_top, num_rows_of_graph], of all its rows
    are_logprobs_columns: bool = False
    prompt_rows: tuple[PromptLogprobRows, ...] = ()
    prompt_logprobs: tuple[Download, ...] = ()

    @classmethod
    def of_nothing(cls) -> "PendingOutput":
        """Of a step without rows."""
        return cls(NO_ROWS, NO_ROWS, NO_ROWS.astype(np.int64))

    def is_ready(self) -> bool:
        """Whether `collect` won't have to wait."""
        downloads = (self.columns, self.logprobs, *self.prompt_logprobs)
        return all(download is None or download.is_ready() for download in downloads)
