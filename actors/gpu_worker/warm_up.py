"""Steps that nobody asked for: the first real one finds everything loaded, and a probe finds what a step takes."""

from typing import Final

from msgspec.structs import replace

from pillion.actors.gpu_worker.limits import WorkerLimits
from pillion.actors.gpu_worker.stages import Stages
from pillion.messages.base import RingMessage
from pillion.messages.codec import pack_ids
from pillion.messages.sampling import MAX_LOGPROBS, TokenSampling
from pillion.messages.steps import NewSequence, StepOutput, StepPlan

# Of a prefill: enough to load every operator, few enough to take no time.
WARM_UP_TOKENS: Final = 48

_EPOCH: Final = 1
_SELF_TEST_TOKENS: Final = 4  # fewer than the smallest block has
GREEDY: Final = TokenSampling(
    temperature=0.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    repetition_penalty=1.0,
    seed=0,
    stop_token_ids=[],
    min_tokens=0,
    max_tokens=1 << 30,
    logprobs=None,
    prompt_logprobs=None,
    logit_bias={},
    allowed_token_ids=[],
    bad_words=[],
)
EVERYTHING: Final = TokenSampling(
    temperature=1.0,
    top_k=50,
    top_p=0.9,
    min_p=0.01,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    repetition_penalty=1.1,
    seed=0,
    stop_token_ids=[0],
    min_tokens=1,
    max_tokens=1 << 30,
    logprobs=5,
    prompt_logprobs=None,
    logit_bias={0: 1.0},
    allowed_token_ids=[0, 1],
    bad_words=[[0, 0]],
)
# Of the row with the longest prompt, in a step as large as there can be.
_LARGEST: Final = replace(EVERYTHING, prompt_logprobs=MAX_LOGPROBS)


def warm_up(stages: Stages, limits: WorkerLimits, block_size: int, num_prefill_tokens: int) -> None:
    """One step that prefills about so many tokens, and one that decodes as many rows as there can be.

    Every row uses every sampling feature if the prefill is as long as a step may be, and the longest prompt gets
    log-probabilities; else one row uses them. Leaves the tables empty; the KV blocks hold what nobody reads.
    """
    num_rows = min(limits.max_num_seqs, limits.num_blocks, num_prefill_tokens)
    # The first row takes what the others leave, one token short of the longest sequence.
    first_len = num_prefill_tokens - (num_rows - 1)
    first_len = min(
        first_len, limits.max_model_len - 1, (limits.num_blocks - num_rows + 1) * block_size - 1
    )
    lengths = [max(first_len, 1)] + [1] * (num_rows - 1)
    is_largest = num_prefill_tokens >= limits.max_num_batched_tokens
    new, next_block = [], 0
    for slot, length in enumerate(lengths):
        num_blocks = length // block_size + 1
        if slot == 0:
            sampling = _LARGEST if is_largest else EVERYTHING
        else:
            sampling = EVERYTHING if is_largest else GREEDY
        new.append(_sequence(slot, length, range(next_block, next_block + num_blocks), sampling))
        next_block += num_blocks
    _run(stages, new)


def self_test(stages: Stages) -> str | None:
    """Runs a prefill and a decode step whose input is known to be good; what went wrong, or None.

    The tables must be empty, and are left so; the block that is used has its content back afterwards.
    """
    block = stages.kv_cache.tensor[0]
    content = block.clone()
    outgoing = _run(stages, [_sequence(0, _SELF_TEST_TOKENS, range(1), GREEDY)])
    block.copy_(content)
    failures = (message.failure for _, message in outgoing if isinstance(message, StepOutput))
    return next((failure.message for failure in failures if failure is not None), None)


def _sequence(slot: int, length: int, blocks: range, sampling: TokenSampling) -> NewSequence:
    return NewSequence(
        sequence_id=slot,
        slot=slot,
        generation=0,
        token_ids=pack_ids([0] * length),
        num_prompt_tokens=length,
        num_computed_tokens=0,
        block_ids=[pack_ids(blocks)],
        sampling=sampling,
    )


def _run(stages: Stages, new: list[NewSequence]) -> list[tuple[str, RingMessage]]:
    """Prefills these, decodes a token of each and releases them. Returns what a worker says to that."""
    worker = stages.worker(_EPOCH, steps_in_flight=1)
    num_rows, slots = len(new), pack_ids(each.slot for each in new)
    for plan_id, starts in enumerate(([0] * num_rows, [-1] * num_rows)):
        lengths = [each.num_prompt_tokens for each in new] if plan_id == 0 else [1] * num_rows
        plan = StepPlan(
            epoch=_EPOCH,
            plan_id=plan_id,
            repeat=1,
            slots=slots,
            generations=pack_ids([0] * num_rows),
            starts=pack_ids(starts),
            num_tokens=pack_ids(lengths),
            new_sequences=new if plan_id == 0 else [],
        )
        worker.on_message(plan, 0)
    end = StepPlan(
        epoch=_EPOCH,
        plan_id=2,
        repeat=1,
        slots=b"",
        generations=b"",
        starts=b"",
        num_tokens=b"",
        released_slots=slots,
    )
    worker.on_message(end, 0)
    while worker.tick(0) is not None:
        pass
    return worker.outgoing
