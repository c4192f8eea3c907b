"""Whose fault a failed step was: its sequences are tried again in halves, until one fails alone."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pillion.actors.scheduler.in_flight import SentPlan
from pillion.actors.scheduler.sequence import Sequence
from pillion.messages.ids import SequenceId

MAX_STRIKES: Final = 2
# Suspects may be gone without a word, with a worker that was lost and a client that did not wait.
MAX_SUSPECTS: Final = 4096


@dataclass(slots=True)
class _Suspect:
    num_strikes: int = 0  # failed steps that it was in
    clear_at: int = 0  # computed tokens with which it has got past the last of them


class StepFaults:
    """Suspects, in groups that are tried one after the other; whoever is not on trial waits meanwhile.

    A suspect is cleared when it has got past the step that failed. A group that fails again is halved, and
    who fails alone for the second time is guilty. Suspects are known by their ids, so that suspicion outlives a
    worker whose device was lost.
    """

    def __init__(self) -> None:
        self._suspects: dict[SequenceId, _Suspect] = {}
        self._groups: deque[list[SequenceId]] = deque()
        self._tried: list[SequenceId] | None = None  # the group on trial
        self._on_trial: frozenset[SequenceId] = frozenset()

    def may_run(self, sequence_id: SequenceId) -> bool:
        """Whether no trial is on that this sequence is no part of."""
        return self._tried is None or sequence_id in self._on_trial

    def is_suspect(self, sequence_id: SequenceId) -> bool:
        """Whether it is not cleared of a step that failed."""
        return sequence_id in self._suspects

    def accuse(self, clear_at: Mapping[SequenceId, int], num_rows: int) -> SequenceId | None:
        """A step of so many rows failed; of these sequences, those that are open are accused.

        The numbers are the computed tokens that will clear them. Returns who is guilty, if that is certain now.
        """
        for sequence_id, num_tokens in clear_at.items():
            suspect = self._suspects.setdefault(sequence_id, _Suspect())
            suspect.num_strikes += 1
            suspect.clear_at = num_tokens
        accused = list(clear_at)
        for group in self._groups:
            group[:] = [sequence_id for sequence_id in group if sequence_id not in clear_at]
        if num_rows == len(accused) == 1 and self._suspects[accused[0]].num_strikes >= MAX_STRIKES:
            self.forget(accused[0])
            return accused[0]
        middle = (len(accused) + 1) // 2
        self._groups.extendleft(half for half in (accused[middle:], accused[:middle]) if half)
        self._forget_oldest()
        return None

    def forget(self, sequence_id: SequenceId) -> None:
        """It has ended, for whatever reason."""
        self._suspects.pop(sequence_id, None)

    def next_trial(self, open_sequences: Mapping[SequenceId, Sequence]) -> bool:
        """Clears who got past the step that failed. Returns whether others than before may run now."""
        if not self._groups and self._tried is None:
            return False
        for group in self._groups:
            group[:] = [i for i in group if self._is_left(i, open_sequences.get(i))]
        self._groups = deque(group for group in self._groups if group)
        tried = next((g for g in self._groups if not open_sequences.keys().isdisjoint(g)), None)
        if tried is self._tried:
            return False
        self._tried = tried
        self._on_trial = frozenset(tried or ())
        return True

    def _is_left(self, sequence_id: SequenceId, sequence: Sequence | None) -> bool:
        """Whether it is a suspect still; one that is not open may come again."""
        suspect = self._suspects.get(sequence_id)
        if suspect is None:
            return False
        if sequence is None or sequence.num_computed_tokens < suspect.clear_at:
            return True
        del self._suspects[sequence_id]
        return False

    def _forget_oldest(self) -> None:
        for sequence_id in list(self._suspects)[:-MAX_SUSPECTS]:
            del self._suspects[sequence_id]


def clearing_marks(
    sequence_ids: Iterable[SequenceId],
    plan: SentPlan,
    execution: int,
    open_sequences: Mapping[SequenceId, Sequence],
) -> dict[SequenceId, int]:
    """For those of a failed step that are open: the computed tokens with which each has got past it.

    A prefill row is past it with its chunk. A decode row is computed as the end of a prefill when it is tried, so
    it must decode another token besides.
    """
    ends = {} if execution else {s.sequence_id: end for s, end in plan.prefill_rows}
    return {
        sequence_id: ends.get(sequence_id, open_sequences[sequence_id].num_tokens + 1)
        for sequence_id in sequence_ids
        if sequence_id in open_sequences
    }
