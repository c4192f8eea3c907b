"""A StepPlan in the making: rows, blocks, tenants that come and go."""

from array import array
from dataclasses import dataclass, field

import msgspec

from pillion.actors.scheduler.in_flight import SentPlan
from pillion.actors.scheduler.sequence import Sequence
from pillion.messages.steps import NewSequence, StepPlan

DECODE_START = -1


@dataclass(slots=True)
class Draft:
    """Collects what goes into a plan. Decode rows come before prefill rows in its columns."""

    decode_rows: list[Sequence] = field(default_factory=list)
    prefill_rows: list[tuple[Sequence, int, int]] = field(default_factory=list)  # start, num_tokens
    admitted: list[Sequence] = field(default_factory=list)
    released: list[Sequence] = field(default_factory=list)
    # Parallel: blocks at the end of tables that the worker already has.
    append_slots: "array[int]" = field(default_factory=lambda: array("i"))
    append_groups: "array[int]" = field(default_factory=lambda: array("i"))
    append_blocks: "array[int]" = field(default_factory=lambda: array("i"))

    @property
    def is_empty(self) -> bool:
        """Whether the worker would have nothing to do."""
        return not (self.decode_rows or self.prefill_rows or self.released)

    @property
    def changes_rows(self) -> bool:
        """Whether it says more than that the decode rows may go on."""
        return bool(self.prefill_rows or self.released or self.append_slots)

    @property
    def token_rows(self) -> list[Sequence]:
        """Rows that sample a token: all decode rows, and prefill rows that reach the last known token."""
        ending = [
            sequence
            for sequence, start, num_tokens in self.prefill_rows
            if start + num_tokens == sequence.num_prefill_tokens
        ]
        return self.decode_rows + ending

    def append(self, sequence: Sequence, block_ids: list["array[int]"]) -> None:
        """The sequence, which has had its slot before this plan, got these blocks of each group."""
        for group, ids in enumerate(block_ids):
            self.append_slots.extend(array("i", [sequence.slot]) * len(ids))
            self.append_groups.extend(array("i", [group]) * len(ids))
            self.append_blocks.extend(ids)

    def build(
        self, epoch: int, plan_id: int, repeat: int, fresh: bool, edge_epoch: int
    ) -> tuple[StepPlan, SentPlan]:
        """The message, and what to remember of it."""
        rows = [*self.decode_rows, *(sequence for sequence, _, _ in self.prefill_rows)]
        num_decodes = len(self.decode_rows)
        starts = [DECODE_START] * num_decodes + [start for _, start, _ in self.prefill_rows]
        counts = [1] * num_decodes + [num_tokens for _, _, num_tokens in self.prefill_rows]
        plan = StepPlan(
            epoch=epoch,
            plan_id=plan_id,
            repeat=repeat,
            slots=array("i", [sequence.slot for sequence in rows]).tobytes(),
            generations=array("i", [sequence.generation for sequence in rows]).tobytes(),
            starts=array("i", starts).tobytes(),
            num_tokens=array("i", counts).tobytes(),
            append_slots=self.append_slots.tobytes(),
            append_groups=self.append_groups.tobytes(),
            append_blocks=self.append_blocks.tobytes(),
            new_sequences=[_new_sequence(sequence) for sequence in self.admitted],
            released_slots=array("i", [sequence.slot for sequence in self.released]).tobytes(),
            fresh=fresh,
            edge_epoch=edge_epoch,
        )
        sent = SentPlan(
            plan_id=plan_id,
            repeat=repeat,
            token_rows=self.token_rows,
            prefill_rows=[
                (sequence, start + num_tokens) for sequence, start, num_tokens in self.prefill_rows
            ],
            released=self.released,
        )
        return plan, sent


def _new_sequence(sequence: Sequence) -> NewSequence:
    sampling = sequence.sampling
    if sequence.has_produced and sampling.prompt_logprobs is not None:
        # The edge had them with the first token.
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
    return NewSequence(
        sequence_id=sequence.sequence_id,
        slot=sequence.slot,
        generation=sequence.generation,
        token_ids=sequence.token_ids.tobytes(),
        num_prompt_tokens=sequence.request.num_prompt_tokens,
        num_computed_tokens=sequence.num_computed_tokens,
        block_ids=[table.tobytes() for table in sequence.block_ids],
        sampling=sampling,
    )
