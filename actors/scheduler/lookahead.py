"""The sequences that are next: their prefixes are looked up before there is room for them."""

from typing import Final

from pillion.actors.scheduler.block_ledger import BlockLedger
from pillion.actors.scheduler.request_book import RequestBook
from pillion.actors.scheduler.sequence import Phase, Sequence
from pillion.messages.blocks import PrefixFound
from pillion.messages.ids import SequenceId
from pillion.runtime.errors import InvariantBroken

# Looked up beyond the free slots, so that a slot that comes free is filled by the next plan.
SPARE_CANDIDATES: Final = 4
# Each candidate pins its cached prefix, so there are never many.
MAX_CANDIDATES: Final = 32


class Lookahead:
    """Takes sequences out of the queue in its order and keeps them until they are admitted.

    A candidate is put back (its prefix is unpinned, and looked up again when its turn comes) if running
    sequences or a candidate before it need the memory, or one with a lower priority number its place.
    """

    def __init__(self, book: RequestBook) -> None:
        self._book = book
        self._matching: dict[SequenceId, Sequence] = {}
        self._ready: list[Sequence] = []

    @property
    def ready(self) -> list[Sequence]:
        """Candidates that can be admitted, by priority and then in the order of the queue."""
        return self._ready

    def fill(
        self, num_free_slots: int, ledger: BlockLedger, below_priority: int | None = None
    ) -> bool:
        """Looks up the prefixes of those whose turn comes soon, perhaps only of lower priority numbers.

        Returns whether one of them is a candidate at once, because it can have no prefix.
        """
        queue, found_any = self._book.queue, False
        limit = min(num_free_slots + SPARE_CANDIDATES, MAX_CANDIDATES)
        while (sequence := queue.peek()) is not None:
            if below_priority is not None and sequence.request.priority >= below_priority:
                break
            num_candidates = len(self._matching) + len(self._ready)
            if num_candidates >= limit and not self._make_place(sequence, ledger):
                break
            queue.pop()
            if not sequence.was_charged:
                sequence.was_charged = True
                self._book.fair_share.charge(sequence.request.client, sequence.num_tokens)
            sequence.phase = Phase.MATCHING
            self._matching[sequence.sequence_id] = sequence
            found = ledger.open(sequence)
            if found is not None:
                self.on_prefix_found(found, ledger)
                found_any = True
        return found_any

    def on_prefix_found(self, message: PrefixFound, ledger: BlockLedger) -> None:
        """The answer to FindPrefix: the sequence is a candidate now.

        One that has ended meanwhile gives its blocks back. So does one whose turn it is no more, because
        others are on trial; it queues again.
        """
        sequence = self._matching.pop(message.sequence_id, None)
        if sequence is None:
            raise InvariantBroken(f"PrefixFound of sequence {message.sequence_id}: nobody asked")
        ledger.found(sequence, message)
        if sequence.outcome is not None:
            ledger.release(sequence)
            sequence.phase = Phase.CLOSED
            return
        if not self._book.may_run(sequence):
            ledger.release(sequence)
            self._book.requeue(sequence)
            return
        sequence.phase = Phase.READY
        place = len(self._ready)
        priority = sequence.request.priority
        while place and self._ready[place - 1].request.priority > priority:
            place -= 1
        self._ready.insert(place, sequence)
        self._book.follow(sequence, ledger.block_size_tokens)

    def take(self, sequence: Sequence) -> None:
        """The candidate is admitted or has ended."""
        self._ready.remove(sequence)

    def put_back(self, ledger: BlockLedger, keep: Sequence | None = None) -> None:
        """Unpins the prefixes of all candidates but one."""
        for sequence in list(self._ready):
            if sequence is not keep:
                self._put_back(sequence, ledger)

    def ask_again(self, ledger: BlockLedger) -> None:
        """The KV manager is new: whoever waits for its answer waits for this one's."""
        for sequence in self._matching.values():
            ledger.open(sequence)

    def _put_back(self, sequence: Sequence, ledger: BlockLedger) -> None:
        self._ready.remove(sequence)
        ledger.release(sequence)
        self._book.requeue(sequence)

    def _make_place(self, sequence: Sequence, ledger: BlockLedger) -> bool:
        last = self._ready[-1] if self._ready else None
        if last is None or last.request.priority <= sequence.request.priority:
            return False
        self._put_back(last, ledger)
        return True
