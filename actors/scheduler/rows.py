"""The rows of a StepOutput, taken into the sequences. The only work per generated token."""

from dataclasses import dataclass, field

from pillion.actors.scheduler.block_ledger import BlockLedger
from pillion.actors.scheduler.fair_share import DECODE_TOKEN_COST
from pillion.actors.scheduler.sequence import Sequence
from pillion.messages.codec import unpack_ids, unpack_int64
from pillion.messages.ids import FINISH_ERROR, FINISH_NONE, FINISH_REASONS, FinishReason, SequenceId
from pillion.messages.steps import StepOutput
from pillion.runtime.errors import InvariantBroken


@dataclass(slots=True)
class TakenRows:
    """What came of a StepOutput's rows."""

    num_tokens: int = 0
    num_stale: int = 0  # of sequences that have ended for their client
    ended: list[tuple[Sequence, FinishReason]] = field(default_factory=list)


def take_rows(
    output: StepOutput, open_sequences: dict[SequenceId, Sequence], ledger: BlockLedger
) -> TakenRows:
    """Appends the tokens. Writes: tokens, computed tokens and client's share of each row's sequence.

    Raises InvariantBroken for a row that does not continue its sequence.
    """
    taken = TakenRows()
    tokens = unpack_ids(output.token_ids)
    end = 0
    for sequence_id, slot, generation, position, num_tokens, finish in zip(
        unpack_int64(output.sequence_ids),
        unpack_ids(output.slots),
        unpack_ids(output.generations),
        unpack_ids(output.positions),
        unpack_ids(output.num_tokens),
        output.finish,
        strict=True,
    ):
        start, end = end, end + num_tokens
        sequence = open_sequences.get(sequence_id)
        if sequence is None or sequence.generation != generation or sequence.slot != slot:
            taken.num_stale += 1
            continue
        if finish == FINISH_ERROR:
            taken.ended.append((sequence, "error"))
            continue
        token_ids = sequence.token_ids
        if position != len(token_ids):
            raise InvariantBroken(
                f"a row of sequence {sequence_id} starts at position {position},"
                f" {len(token_ids)} tokens are known"
            )
        if num_tokens == 1:
            token_ids.append(tokens[start])
        else:
            token_ids.extend(tokens[start:end])
        taken.num_tokens += num_tokens
        sequence.request.client.served += num_tokens * DECODE_TOKEN_COST
        computed = len(token_ids) - 1
        sequence.num_computed_tokens = computed
        if computed >= sequence.next_commit_tokens:
            ledger.note_full(sequence)
        if finish != FINISH_NONE:
            reason = FINISH_REASONS[finish]
            if reason is not None:
                taken.ended.append((sequence, reason))
    return taken
