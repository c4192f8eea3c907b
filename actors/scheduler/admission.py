"""Who gets a slot next."""

from typing import Final

from pillion.actors.scheduler.block_ledger import BlockLedger
from pillion.actors.scheduler.lookahead import Lookahead
from pillion.actors.scheduler.running import Running
from pillion.actors.scheduler.sequence import Sequence

# Sequences that may be admitted before an earlier one that does not fit.
MAX_PASSED: Final = 32


class Admission:
    """Admits candidates in order when there is a slot and blocks for all their known tokens.

    The whole prompt's blocks are reserved at once, so that prompts do not take each other's last blocks
    halfway. One that does not fit now lets smaller ones of its own priority pass, at most MAX_PASSED of
    them. Then the door is closed until it fits, which it will: whatever runs ends, and what could never
    fit was refused. Those with a higher priority number do not pass; they would be preempted for it.
    """

    def __init__(self, running: Running, ledger: BlockLedger, lookahead: Lookahead) -> None:
        self._running = running
        self._ledger = ledger
        self._leases = ledger.leases
        self._lookahead = lookahead

    def admissible(self) -> list[Sequence]:
        """The candidates for which there is room now, in order."""
        slots = self._running.num_free_slots
        blocks = self._leases.num_free - self._running.headroom_blocks
        fitting: list[Sequence] = []
        misfit: Sequence | None = None
        num_passing = 0
        for candidate in self._lookahead.ready:
            if len(fitting) == slots:
                break
            if misfit is not None and (
                candidate.request.priority > misfit.request.priority
                or misfit.num_passed + num_passing >= MAX_PASSED
            ):
                break
            missing = self._running.missing_to_start(candidate)
            if missing <= blocks:
                blocks -= missing
                fitting.append(candidate)
                num_passing += misfit is not None
            elif misfit is None:
                misfit = candidate
        return fitting

    def misfit(self) -> Sequence | None:
        """The first candidate, if there are not enough blocks for it."""
        if not self._lookahead.ready:
            return None
        head = self._lookahead.ready[0]
        room = self._leases.num_free - self._running.headroom_blocks
        return head if self._running.missing_to_start(head) > room else None

    def admit(self, candidate: Sequence) -> None:
        """Gives an admissible candidate its slot and blocks."""
        for earlier in self._lookahead.ready:
            if earlier is candidate:
                break
            earlier.num_passed += 1
        self._lookahead.take(candidate)
        self._ledger.grow(candidate, self._running.missing_to_start(candidate))
        self._running.admit(candidate)

    def fill_lookahead(self) -> bool:
        """Looks up the prefixes of those who are next, unless the door is closed to all but their betters.

        Returns whether one of them is a candidate at once.
        """
        head = self.misfit()
        running = self._running
        if head is None or (running.sequences and head.num_passed < MAX_PASSED):
            return self._lookahead.fill(running.num_free_slots, self._ledger)
        if not running.sequences and self._leases.is_short:
            # Only the other candidates can still hold what it needs.
            self._lookahead.put_back(self._ledger, keep=head)
        return self._lookahead.fill(running.num_free_slots, self._ledger, head.request.priority)
