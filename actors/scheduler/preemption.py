"""Whom to preempt: it gives its slot back and computes its tokens again when there is room."""

from collections.abc import Iterable

from pillion.actors.scheduler.admission import Admission
from pillion.actors.scheduler.leases import Leases
from pillion.actors.scheduler.lookahead import Lookahead
from pillion.actors.scheduler.running import Running
from pillion.actors.scheduler.sequence import Phase, Sequence


class Preemption:
    """Chooses victims: the highest priority number first, then the latest arrival.

    Nobody is preempted while missing blocks are on their way. A victim never outranks whom it makes room
    for, so the sequence of lowest rank always goes on and two never take turns in preempting each other.
    """

    def __init__(
        self, running: Running, admission: Admission, leases: Leases, lookahead: Lookahead
    ) -> None:
        self._running = running
        self._admission = admission
        self._leases = leases
        self._lookahead = lookahead

    def victims(self, starving: list[Sequence]) -> list[Sequence]:
        """Who must go now. `starving`: rows that stand still for want of a block, lowest rank first."""
        running = self._running
        starving = [sequence for sequence in starving if sequence.phase is Phase.RUNNING]
        if starving:
            if any(candidate.num_blocks for candidate in self._lookahead.ready):
                return []  # they are put back first
            rank = starving[0].rank
            lower = [sequence for sequence in running.sequences.values() if sequence.rank > rank]
            missing = sum(running.missing_now(sequence) for sequence in starving)
            return self._enough(lower, missing)
        if not self._lookahead.ready:
            return []
        head = self._lookahead.ready[0]
        lower = [
            sequence
            for sequence in running.sequences.values()
            if sequence.request.priority > head.request.priority
        ]
        if self._admission.misfit() is not None:
            missing = running.missing_to_start(head) + running.headroom_blocks
            return self._enough(lower, missing)
        if running.num_free_slots or not lower:
            return []
        return [max(lower, key=lambda sequence: sequence.rank)]

    def _enough(self, candidates: Iterable[Sequence], num_blocks: int) -> list[Sequence]:
        """The highest ranks whose tables have as many blocks as are neither there nor coming."""
        if not self._leases.is_short:
            return []
        missing = num_blocks - self._leases.num_free - self._running.num_coming_blocks
        victims: list[Sequence] = []
        for sequence in sorted(candidates, key=lambda item: item.rank, reverse=True):
            if missing <= 0:
                break
            victims.append(sequence)
            missing -= sequence.num_blocks
        return victims
