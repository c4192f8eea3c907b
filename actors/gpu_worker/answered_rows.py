"""The rows of a StepOutput and log-probabilities; and what the answers of steps with the same rows have in common."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from pillion.actors.gpu_worker.step_inputs import PromptLogprobRows
from pillion.messages.ids import FINISH_NONE
from pillion.messages.steps import PromptLogprobs, SampledLogprobs


class AnsweredRows(NamedTuple):
    """Fields of a StepOutput, under their names there."""

    sequence_ids: bytes
    slots: bytes
    generations: bytes
    positions: bytes
    num_tokens: bytes
    token_ids: bytes
    finish: bytes
    logprobs: SampledLogprobs | None
    errors: dict[int, str]


@dataclass(frozen=True, slots=True)
class RowBytes:
    """Of these rows, all that their tokens do not change as long as each row has one and goes on."""

    slots_np: npt.NDArray[np.int32]
    generations_np: npt.NDArray[np.int32]
    sequence_ids: bytes
    slots: bytes
    generations: bytes
    num_tokens: bytes
    finish: bytes
    # [2, num_rows] int32, as the device says it: finish codes, and whether the rows count
    going_on: bytes

    @classmethod
    def of(
        cls,
        slots_np: npt.NDArray[np.int32],
        generations_np: npt.NDArray[np.int32],
        sequence_ids_np: npt.NDArray[np.int64],
    ) -> Self:
        """[num_rows] each."""
        num_rows = len(slots_np)
        return cls(
            slots_np=slots_np,
            generations_np=generations_np,
            sequence_ids=sequence_ids_np.tobytes(),
            slots=slots_np.tobytes(),
            generations=generations_np.tobytes(),
            num_tokens=np.ones(num_rows, dtype=np.int32).tobytes(),
            finish=np.full(num_rows, FINISH_NONE, dtype=np.uint8).tobytes(),
            going_on=np.repeat(np.array([FINISH_NONE, 1], np.int32), num_rows).tobytes(),
        )

    def answer(self, columns: npt.NDArray[np.int32]) -> AnsweredRows | None:
        """Of the columns [4, num_rows] that a step leaves for the host; None unless all rows have a token and go on."""
        if columns[2:].tobytes() != self.going_on:
            return None
        return AnsweredRows(
            sequence_ids=self.sequence_ids,
            slots=self.slots,
            generations=self.generations,
            positions=columns[1].tobytes(),
            num_tokens=self.num_tokens,
            token_ids=columns[0].tobytes(),
            finish=self.finish,
            logprobs=None,
            errors={},
        )


def prompt_message(rows: PromptLogprobRows, arrays: list[npt.NDArray[Any]]) -> PromptLogprobs:
    """Of token ids and log-probabilities [n, 1 + num_top], and ranks [n], of one prompt's tokens."""
    token_ids, logprobs, ranks = arrays
    return PromptLogprobs(
        sequence_id=rows.sequence_id,
        start=rows.start,
        num_top=rows.num_top,
        token_ids=token_ids.astype(np.int32).tobytes(),
        logprobs=logprobs.astype(np.float32).tobytes(),
        ranks=ranks.astype(np.int32).tobytes(),
    )


def logprobs_message(
    arrays: list[npt.NDArray[Any]],
    rows: npt.NDArray[np.int32],
    with_token: npt.NDArray[np.int64],
    kept: npt.NDArray[np.int64],
) -> SampledLogprobs | None:
    """Of the rows that have a token, under their indices in the StepOutput; None if there are none.

    arrays: token ids and log-probabilities [len(rows), 1 + num_top], ranks [len(rows)]; `with_token` are some of the
    rows `kept`, which the StepOutput has.
    """
    wanted = np.isin(rows, with_token)
    if not wanted.any():
        return None
    token_ids, logprobs, ranks = arrays
    return SampledLogprobs(
        num_top=token_ids.shape[1] - 1,
        rows=np.searchsorted(kept, rows[wanted]).astype(np.int32).tobytes(),
        token_ids=token_ids[wanted].astype(np.int32).tobytes(),
        logprobs=logprobs[wanted].astype(np.float32).tobytes(),
        ranks=ranks[wanted].astype(np.int32).tobytes(),
    )
