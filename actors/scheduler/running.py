"""The sequences that have a slot, and those whose slot is on its way back."""

from pillion.actors.scheduler.limits import Limits
from pillion.actors.scheduler.sequence import Phase, Sequence
from pillion.actors.scheduler.slots import SlotTable
from pillion.messages.ids import SequenceId


class Running:
    """RUNNING, LEAVING and LEFT sequences. Writes their phase and slot."""

    def __init__(self, limits: Limits) -> None:
        self.sequences: dict[SequenceId, Sequence] = {}
        self.prefilling: dict[Sequence, None] = {}  # of these, in order of admission
        self.leaving: list[Sequence] = []  # the next plan releases their slots
        self.left: dict[Sequence, None] = {}  # released by a plan that is not answered
        self._limits = limits
        self._slots = SlotTable(limits.max_num_seqs)

    @property
    def num_free_slots(self) -> int:
        """Slots that the next plan can give away."""
        return self._slots.num_free + len(self.leaving)

    @property
    def holders(self) -> list[Sequence]:
        """Everyone who has blocks through a slot, or had it until a moment ago."""
        return [*self.sequences.values(), *self.leaving, *self.left]

    @property
    def num_coming_blocks(self) -> int:
        """Blocks of sequences that are on their way out; those that are shared will not come free."""
        return sum(sequence.num_blocks for sequence in (*self.leaving, *self.left))

    @property
    def headroom_blocks(self) -> int:
        """Blocks that a new sequence leaves to those that run, so that it is not preempted at once."""
        return min(len(self.sequences), self._limits.num_blocks // 8)

    def missing_now(self, sequence: Sequence) -> int:
        """Blocks without which a decoding sequence surely stands still after the plans in flight."""
        return self._missing(sequence, len(sequence.token_ids) + sequence.min_ahead)

    def missing_for(self, sequence: Sequence, num_steps: int) -> int:
        """Blocks with which a sequence surely runs this many decode steps after the plans in flight."""
        num_tokens = len(sequence.token_ids) + sequence.max_ahead + num_steps
        if num_tokens > sequence.max_total_tokens:
            num_tokens = sequence.max_total_tokens
        # The last token's KV is never needed.
        return self._missing(sequence, num_tokens - 1)

    def missing_to_start(self, sequence: Sequence) -> int:
        """Blocks with which all known tokens of a sequence can be computed."""
        return self._missing(sequence, sequence.num_tokens)

    def admit(self, sequence: Sequence) -> None:
        """Gives a slot to a sequence whose prefix is known."""
        sequence.slot, sequence.generation = self._slots.take()
        sequence.phase = Phase.RUNNING
        sequence.num_prefill_tokens = sequence.num_tokens
        sequence.num_planned_tokens = sequence.num_computed_tokens
        sequence.min_ahead = sequence.max_ahead = 0
        self.sequences[sequence.sequence_id] = sequence
        self.prefilling[sequence] = None

    def note_planned(self, sequence: Sequence, num_tokens: int) -> None:
        """The next plan prefills this many tokens more."""
        sequence.num_planned_tokens += num_tokens
        if not sequence.is_prefilling:
            del self.prefilling[sequence]

    def leave(self, sequence: Sequence) -> None:
        """The sequence is over or preempted: the next plan releases its slot."""
        del self.sequences[sequence.sequence_id]
        self.prefilling.pop(sequence, None)
        sequence.phase = Phase.LEAVING
        self.leaving.append(sequence)

    def release_leaving(self) -> list[Sequence]:
        """Those whose slots the plan in the making releases and may give to others."""
        released, self.leaving = self.leaving, []
        for sequence in released:
            self._slots.free(sequence.slot)
            sequence.phase = Phase.LEFT
            self.left[sequence] = None
        return released

    def abandon(self) -> list[Sequence]:
        """The worker is gone with its slots: returns everyone who had one."""
        holders = self.holders
        self.sequences.clear()
        self.prefilling.clear()
        self.leaving.clear()
        self.left.clear()
        self._slots.free_all()
        return holders

    def _missing(self, sequence: Sequence, num_tokens: int) -> int:
        missing_tokens = num_tokens - sequence.capacity_tokens
        return -(-missing_tokens // self._limits.block_size_tokens) if missing_tokens > 0 else 0
