"""The third stage of a step: tokens from logits, the state's update on the device, the answer to the host.

`collect` is the only place on the step path that waits for the device.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from pillion.actors.gpu_worker.answered_rows import (
    AnsweredRows,
    RowBytes,
    logprobs_message,
    prompt_message,
)
from pillion.actors.gpu_worker.cuda_graphs import CapturedStep
from pillion.actors.gpu_worker.device import Device, Download
from pillion.actors.gpu_worker.model_executor import ModelOutput
from pillion.actors.gpu_worker.pending_output import NO_ROWS, PendingOutput, StepIdentity
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.actors.gpu_worker.sampling.sampler import Sampled, Sampler, prompt_logprobs
from pillion.actors.gpu_worker.sampling.step_end import End, EndResult
from pillion.actors.gpu_worker.step_inputs import PromptLogprobRows, StepInputs
from pillion.kernels.update_rows import update_rows
from pillion.messages.ids import FINISH_ERROR, FINISH_NONE
from pillion.messages.steps import StepOutput, StepPlan, StepTimes, TokenMasks
from pillion.runtime.clock import now_ns

# Logits of this many bytes exist at once while prompt log-probabilities are computed.
PROMPT_LOGITS_BYTES: Final = 32 << 20

NOT_FINITE: Final = (
    "the model gave logits that are not finite (NaN or infinity) for this sequence;"
    " the weights or the number format can't represent it"
)

_NO_COLUMNS: Final = np.zeros((4, 0), dtype=np.int32)
_NO_INDICES: Final = np.zeros(0, dtype=np.intp)


class OutputProcessor:
    """Samples, decides who has finished, updates the state table and builds StepOutputs."""

    def __init__(
        self,
        device: Device,
        states: RequestStates,
        sampler: Sampler,
        compute_logits: Callable[[torch.Tensor], torch.Tensor],
        vocab_size: int,
    ) -> None:
        self._device = device
        self._states = states
        self._sampler = sampler
        self._compute_logits = compute_logits
        self._prompt_chunk = max(1, PROMPT_LOGITS_BYTES // (4 * vocab_size))
        # Of the rows that were answered last. An array that was given before must hold the same.
        self._known_bytes = RowBytes.of(NO_ROWS, NO_ROWS, NO_ROWS.astype(np.int64))

    def apply(self, plan: StepPlan) -> None:
        """Seats the plan's new sequences at the sampler, behind those that it releases."""
        self.release(np.frombuffer(plan.released_slots, dtype=np.int32))
        for new in plan.new_sequences:
            tokens = np.frombuffer(new.token_ids, dtype=np.int32)
            self._sampler.add(new.slot, new.sampling, tokens, new.num_prompt_tokens, new.generation)

    def release(self, slots: npt.NDArray[np.int32]) -> None:
        """Frees these slots at the sampler."""
        for slot in slots.tolist():
            self._sampler.release(slot)

    def take_masks(self, masks: TokenMasks) -> None:
        """Masks have come, for rows that wait for them or soon will."""
        self._sampler.masks.take(masks)

    def forget_masks(self) -> None:
        """All slots are free, and their generations count from the beginning."""
        self._sampler.masks.forget_all()

    @property
    def awaits_masks(self) -> bool:
        """Whether any row does, or soon will."""
        return self._sampler.masks.is_used

    def unmasked(self, inputs: StepInputs) -> npt.NDArray[np.intp]:
        """Rows that sample, as far as the host knows, and whose mask is missing."""
        if not self.awaits_masks:
            return _NO_INDICES
        slots = inputs.sample_slots_np
        next_position = self._states.num_known_np[slots] - 1
        missing = self._sampler.masks.missing(slots, next_position)
        missing = missing & ~self._states.finished_np[slots]
        return np.flatnonzero(missing if inputs.samples_np is None else missing & inputs.samples_np)

    def process(self, inputs: StepInputs, output: ModelOutput) -> PendingOutput:
        """Everything between the logits and the copy to the host; nothing waits.

        Rows without the mask that they need give nothing and are computed again by the next step.
        Writes: the state table's tokens, counters and finished flags.
        """
        columns: Download | None = None
        logprobs: Download | None = None
        logprob_rows_np = NO_ROWS
        slots_np = inputs.sample_slots_np
        if inputs.graph is None:
            self._states.num_computed.index_add_(0, inputs.slots, inputs.advance)
        unmasked = self.unmasked(inputs)
        if len(unmasked):
            self._withhold(inputs, unmasked)
        if inputs.graph is not None and output.logits is not None:
            end = self._sampler.end_for(slots_np)
            ended = self._replay_end(end, inputs.graph, inputs, output.logits)
            columns = self._device.download_again(ended.columns)
            wanted = self._sampler.logprobs.wanted(slots_np) if end is End.FULL else None
            if wanted is not None:
                logprob_rows_np, num_top = wanted
                best_first = ended.logprob_ids[: 1 + num_top], ended.logprobs[: 1 + num_top]
                logprobs = self._device.download([*best_first, ended.ranks])
        elif output.logits is not None:
            sampled, result = self._sample(inputs, output.logits)
            columns = self._device.download([result])
            if sampled.logprobs is not None:
                found = sampled.logprobs
                logprob_rows_np = found.rows_np
                logprobs = self._device.download([found.token_ids, found.logprobs, found.ranks])
        return PendingOutput(
            slots_np=inputs.sample_slots_np,
            generations_np=inputs.sample_generations_np,
            sequence_ids_np=inputs.sample_sequence_ids_np,
            columns=columns,
            logprobs=logprobs,
            logprob_rows_np=logprob_rows_np,
            are_logprobs_columns=inputs.graph is not None,
            prompt_rows=inputs.prompt_logprobs,
            prompt_logprobs=tuple(
                self._prompt_logprobs(rows, output.hidden) for rows in inputs.prompt_logprobs
            ),
        )

    def collect(
        self, pending: PendingOutput, step: StepIdentity, times: StepTimes | None
    ) -> StepOutput:
        """The answer of a step; waits until the device has made it. What comes behind counts as output."""
        prompt_logprobs = [
            prompt_message(rows, download.wait())
            for rows, download in zip(pending.prompt_rows, pending.prompt_logprobs, strict=True)
        ]
        columns = _NO_COLUMNS if pending.columns is None else pending.columns.wait()[0]
        waited_ns = now_ns()
        # The columns of a graph are padded.
        columns = columns[:, : len(pending.slots_np)]
        answered = self._rows_that_go_on(pending, columns) or self._rows_of_all_kinds(
            pending, columns
        )
        if times is not None:
            answered_ns = now_ns()
            times = replace(
                times,
                output_ns=times.output_ns + answered_ns - waited_ns,
                answered_ns=answered_ns,
            )
        return StepOutput(
            epoch=step.epoch,
            step_id=step.step_id,
            plan_id=step.plan_id,
            execution=step.execution,
            prompt_logprobs=prompt_logprobs,
            times=times,
            plan_epoch=step.plan_epoch,
            **answered._asdict(),
        )

    def _rows_that_go_on(
        self, pending: PendingOutput, columns: npt.NDArray[np.int32]
    ) -> AnsweredRows | None:
        """None if any row did not get a token, has ended or wants log-probabilities."""
        if pending.logprobs is not None:
            return None
        known, slots, generations = self._known_bytes, pending.slots_np, pending.generations_np
        if known.slots_np is not slots or known.generations_np is not generations:
            known = RowBytes.of(slots, generations, pending.sequence_ids_np)
            self._known_bytes = known
        return known.answer(columns)

    def _rows_of_all_kinds(
        self, pending: PendingOutput, columns: npt.NDArray[np.int32]
    ) -> AnsweredRows:
        token_ids, positions, all_finish, valid = columns
        kept = np.flatnonzero(valid)
        finish = all_finish[kept]
        slots, generations = pending.slots_np[kept], pending.generations_np[kept]
        ended = finish != FINISH_NONE
        if ended.any():
            self._states.note_finished(slots[ended], generations[ended])
        failed = finish == FINISH_ERROR
        logprobs = None
        if pending.logprobs is not None:
            rows, arrays = pending.logprob_rows_np, pending.logprobs.wait()
            if pending.are_logprobs_columns:
                arrays = [array[..., rows].T for array in arrays]
            logprobs = logprobs_message(arrays, rows, kept[~failed], kept)
        return AnsweredRows(
            sequence_ids=pending.sequence_ids_np[kept].tobytes(),
            slots=slots.tobytes(),
            generations=generations.tobytes(),
            positions=positions[kept].tobytes(),
            num_tokens=(~failed).astype(np.int32).tobytes(),
            token_ids=token_ids[kept[~failed]].tobytes(),
            finish=finish.astype(np.uint8).tobytes(),
            logprobs=logprobs,
            errors=dict.fromkeys(np.flatnonzero(failed).tolist(), NOT_FINITE),
        )

    def _withhold(self, inputs: StepInputs, rows: npt.NDArray[np.intp]) -> None:
        """Masks these rows. Writes: `sample_valid`, and the counters so that their last token is due again."""
        withheld_np = np.zeros(len(inputs.sample_slots_np), np.bool_)
        withheld_np[rows] = True
        withheld = self._device.upload(withheld_np)
        valid = inputs.sample_valid
        taken_back = -(withheld & valid).to(torch.int64)
        self._states.num_computed.index_add_(0, inputs.sample_slots, taken_back)
        valid.logical_and_(~withheld)
        self._states.withhold(inputs.sample_slots_np[rows])

    def _replay_end(
        self, end: End, graph: CapturedStep, inputs: StepInputs, logits: torch.Tensor
    ) -> EndResult:
        """The end that the step's rows need. Writes: the slots' state."""
        if end is not End.FULL:
            self._sampler.masks.apply(logits, inputs.sample_slots, inputs.sample_slots_np)
        if end is not End.GREEDY:
            self._sampler.tables()  # what the host has written is there before the graph reads it
        return graph.replay_end(end)

    def _sample(self, inputs: StepInputs, logits: torch.Tensor) -> tuple[Sampled, torch.Tensor]:
        """The rows' tokens, and the [4, num_sample_rows] int32 columns that go to the host."""
        states, slots, valid = self._states, inputs.sample_slots, inputs.sample_valid
        # One reduction finds NaN and infinity; -inf alone may rule a token out.
        failed = ~logits.amax(-1).isfinite()
        sampled = self._sampler.sample(
            logits, slots, inputs.sample_slots_np, states.num_known[slots]
        )
        positions, finish = update_rows(
            slots,
            sampled.token_ids,
            valid,
            failed,
            states.token_table,
            states.num_known,
            states.max_total,
            states.finished,
            states.stop_ids,
        )
        self._sampler.observe(slots, sampled.token_ids, valid & ~failed)
        columns = (sampled.token_ids, positions, finish, valid)
        return sampled, torch.stack([column.to(torch.int32) for column in columns])

    def _prompt_logprobs(self, rows: PromptLogprobRows, hidden: torch.Tensor) -> Download:
        """Of one sequence, piece by piece: prompt x vocabulary never exists at once."""
        token_ids = self._device.upload_int64(rows.token_ids_np)
        pieces = []
        for start in range(0, len(rows.token_ids_np), self._prompt_chunk):
            wanted = token_ids[start : start + self._prompt_chunk]
            first = rows.first_token + start
            logits = self._compute_logits(hidden[first : first + len(wanted)])
            pieces.append(prompt_logprobs(logits, wanted, rows.num_top))
        return self._device.download([torch.cat(column) for column in zip(*pieces, strict=True)])
