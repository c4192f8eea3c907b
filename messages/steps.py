"""One forward pass: what the scheduler plans and what the worker answers.

Columns are packed little-endian arrays (int32 unless said otherwise), one entry per row; receivers view them without
a copy. A request lives in one slot of the worker's state table from admission to release. A row names
`(slot, generation)`; the generation counts the slot's reuses, so a late row never hits the next tenant.

How a worker treats plans:

- Plans are executed in the order in which they arrive, each at least once, and each execution yields
  exactly one StepOutput, also when it has no rows.
- After its first execution a plan may be executed `repeat - 1` more times, until the next plan is there.
  In those repeats every row is a decode row; a prefill row that ended short of the tokens known is left out.
- `released` slots are freed before `new_sequences` are written, and blocks are appended, before the rows run.
- A row that the device has finished, or that has no block for its next token, is masked: it computes
  nothing that counts, writes nothing, and does not appear in the StepOutput.
- Blocks of a released slot may be reused once the plan that released it has been answered.
- A step that fails is answered with a StepFailure in place of rows. The worker has then emptied its table, and
  drops every plan until one that is `fresh`: those that were on their way built on the step that failed.
"""

import msgspec

from pillion.messages.base import RingMessage
from pillion.messages.ids import SequenceId
from pillion.messages.sampling import TokenSampling


class NewSequence(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A sequence that takes a slot: everything the worker will ever need to know about it, once."""

    sequence_id: SequenceId
    slot: int
    generation: int
    token_ids: bytes  # prompt and what was produced before a preemption or restart
    num_prompt_tokens: int  # penalties and min_tokens count the tokens behind these
    num_computed_tokens: int  # already in the KV cache, through the prefix cache
    block_ids: list[bytes]  # per KV group: the block table so far
    sampling: TokenSampling


class StepPlan(RingMessage, frozen=True):
    """The rows of the next step and what changed since the last plan. Goes to every rank."""

    epoch: int
    plan_id: int  # counts up by one
    repeat: int  # at most this many executions
    slots: bytes
    generations: bytes
    starts: bytes  # first token position of a prefill row; -1: decode the next token
    num_tokens: bytes  # tokens of the row; 1 for decode
    append_slots: bytes = (
        b""  # parallel columns: this slot of this group gets this block at its end
    )
    append_groups: bytes = b""
    append_blocks: bytes = b""
    new_sequences: list[NewSequence] = []
    released_slots: bytes = b""
    # It begins with an empty table: the first plan of a scheduler's life, and after a step that failed.
    fresh: bool = False
    edge_epoch: int = (
        1  # the text edge's life that these rows are for: the worker may not have heard of it
    )


class SampledLogprobs(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Log-probabilities of sampled tokens. Column 0 is the sampled token, then the best `num_top`."""

    num_top: int
    rows: bytes  # [m] indices into the rows of the StepOutput, each once
    token_ids: bytes  # [m, 1 + num_top]; beyond what its request asked for a row holds -1
    logprobs: bytes  # [m, 1 + num_top] float32
    ranks: bytes  # [m] rank of the sampled token, 1 is the best


class PromptLogprobs(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Log-probabilities of the prompt tokens at positions `start .. start + m - 1` of one sequence."""

    sequence_id: SequenceId
    start: int  # at least 1: the first token has no predecessor
    num_top: int
    token_ids: bytes  # [m, 1 + num_top]; column 0 is the prompt's own token
    logprobs: bytes  # [m, 1 + num_top] float32
    ranks: bytes  # [m]


class StepTimes(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Where a step's time went, in nanoseconds."""

    prepare_ns: int
    execute_ns: int
    output_ns: int
    num_prefill_tokens: int
    num_decode_tokens: int
    answered_ns: int = 0  # monotonic: when the host had the answer


class StepFailure(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Why a step gave nothing: none of its tokens counts, and what it wrote to the KV cache must not be read."""

    message: str  # one line: what happened
    sequence_ids: bytes  # [m] int64, the rows of the step
    device_lost: bool = False  # the worker ends, and its memory with it


class StepOutput(RingMessage, frozen=True):
    """The tokens of one step. Rank 0 sends the same bytes to the scheduler and to every text edge.

    Only rows that produced something appear: prefill rows short of the last known token do not.
    """

    epoch: int
    step_id: int  # counts up by one
    plan_id: int
    execution: int  # 0 for a plan's first execution, then 1, 2, ...
    sequence_ids: bytes  # int64
    slots: bytes
    generations: bytes
    positions: bytes  # position in the sequence of the row's first new token
    num_tokens: bytes  # new tokens of the row
    token_ids: bytes  # all rows' tokens, one row after the other
    finish: bytes  # uint8 codes of messages.ids
    logprobs: SampledLogprobs | None = None
    prompt_logprobs: list[PromptLogprobs] = []
    times: StepTimes | None = None
    errors: dict[int, str] = {}  # row index -> why it failed, for rows with FINISH_ERROR
    failure: StepFailure | None = None  # the whole step failed, and there are no rows
    plan_epoch: int = 1  # the life of the scheduler that sent the plan


class TokenMasks(RingMessage, frozen=True):
    """Which tokens may come at one position of each of these sequences: from the text edge to every rank.

    A row whose sequence needs masks is forward-computed without one, but samples nothing until the mask of
    its position is there; what else is in its step never waits for it. A mask may come before the plan
    that seats its sequence.
    """

    epoch: int  # of the scheduler that gave the slots
    slots: bytes
    generations: bytes
    positions: bytes  # that the tokens will take
    masks: bytes  # [m, ceil(vocab_size / 32)]; token t may come if bit t % 32 of word t // 32 is 1
