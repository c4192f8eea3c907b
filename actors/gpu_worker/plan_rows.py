"""The rows of one execution of a plan."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.actors.gpu_worker.step_inputs import PromptLogprobRows

_NO_SLOTS: Final = np.zeros(0, dtype=np.int32)
_NO_POSITIONS: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class PlanRows:
    """The rows of a plan that are worth running now, as the host foresees them."""

    # [num_decode_rows] int32
    decode_slots: npt.NDArray[np.int32]
    # parallel [num_prefill_rows]
    prefill_slots: npt.NDArray[np.int32]
    prefill_starts: npt.NDArray[np.int64]
    prefill_ends: npt.NDArray[np.int64]
    # whether any of these sequences asks for log-probabilities of its prompt, which no captured step has
    asks_prompt_logprobs: bool = False

    @classmethod
    def of_decode(cls, slots: npt.NDArray[np.int32]) -> "PlanRows":
        """Of a step without prefill rows."""
        return cls(slots, _NO_SLOTS, _NO_POSITIONS, _NO_POSITIONS)

    def __len__(self) -> int:
        return len(self.decode_slots) + len(self.prefill_slots)

    @property
    def prefill_lens(self) -> npt.NDArray[np.int64]:
        """[num_prefill_rows] tokens of each prefill row in this step."""
        return self.prefill_ends - self.prefill_starts

    @property
    def num_tokens(self) -> int:
        """Of all rows in this step."""
        return len(self.decode_slots) + int(self.prefill_lens.sum())


def prompt_logprob_rows(
    states: RequestStates, rows: PlanRows, first_tokens: npt.NDArray[np.int64]
) -> tuple[PromptLogprobRows, ...]:
    """What was asked for of the prompt positions that this step's tokens predict.

    first_tokens [num_prefill_rows]: index in input_ids of each prefill row's first token.
    """
    asked = []
    for row, slot in enumerate(rows.prefill_slots.tolist()):
        if slot not in states.prompt_logprobs:
            continue
        prompt, num_top = states.prompt_logprobs[slot]
        start, end = int(rows.prefill_starts[row]) + 1, int(rows.prefill_ends[row]) + 1
        token_ids = prompt[start:end]
        if len(token_ids):
            sequence_id = int(states.sequence_id_np[slot])
            first_token = int(first_tokens[row])
            asked.append(PromptLogprobRows(sequence_id, start, first_token, token_ids, num_top))
    return tuple(asked)
