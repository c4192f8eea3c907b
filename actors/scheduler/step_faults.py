"""Whose fault a failed step was: its sequences are tried again in halves, until one fails alone."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pillion.actors.scheduler.in_flight import SentPlan
from pillion.actors.scheduler.sequence import Sequence
from pillion.messages.ids import SequenceId

FAILED_ALONE: Final = (
    "the step that computes this answer failed each time, the last time with nothing else in it"
)
MAX_STRIKES: Final = 2
# Suspects may be gone without a word, with a worker that was lost and a client that did not wait.
MAX_SUSPECTS: Final = 4096


@dataclass(slots=True)
class _Suspect:
    num_strikes: int = 0  # failed steps that it was in
    clear_at: int = 0  # computed tokens with which it has got past the last of them


@dataclass(frozen=True, slots=True)
class _Verdict:
    sequence_id: SequenceId
    reason: str
    of_request: bool  # the other samples of its request would cost everyone as much


@dataclass(frozen=True, slots=True)
class Accusation:
    """Of sequences that are open, that they may have made a step fail."""

    clear_at: Mapping[SequenceId, int]  # the computed tokens with which each has got past it
    num_rows: int  # of the step, also of sequences that have ended since


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
        self._convicted: _Verdict | None = None  # until it is told
        self._lost_work: Accusation | None = None

    def may_run(self, sequence_id: SequenceId) -> bool:
        """Whether no trial is on that this sequence is no part of."""
        return self._tried is None or sequence_id in self._on_trial

    def is_suspect(self, sequence_id: SequenceId) -> bool:
        """Whether it is not cleared of a step that failed."""
        return sequence_id in self._suspects

    def accuse(
        self, accusation: Accusation, what_happened: str, *, worker_ended: bool = False
    ) -> None:
        """Whoever is guilty, if that is certain now, is convicted: a sample, or its request if it ends workers."""
        clear_at = accusation.clear_at
        for sequence_id, num_tokens in clear_at.items():
            suspect = self._suspects.setdefault(sequence_id, _Suspect())
            suspect.num_strikes += 1
            suspect.clear_at = num_tokens
        accused = list(clear_at)
        for group in self._groups:
            group[:] = [sequence_id for sequence_id in group if sequence_id not in clear_at]
        is_alone = accusation.num_rows == len(accused) == 1
        if is_alone and self._suspects[accused[0]].num_strikes >= MAX_STRIKES:
            self.forget(accused[0])
            self._convicted = _Verdict(
                accused[0], f"{FAILED_ALONE}: {what_happened}", of_request=worker_ended
            )
            return
        middle = (len(accused) + 1) // 2
        self._groups.extendleft(half for half in (accused[middle:], accused[:middle]) if half)
        self._forget_oldest()

    def take_convicted(
        self, open_sequences: Mapping[SequenceId, Sequence]
    ) -> Iterator[tuple[Sequence, str]]:
        """Who is guilty, and of what, as soon as it is open: the edge may have to send it again first."""
        verdict = self._convicted
        if verdict is not None and verdict.sequence_id in open_sequences:
            self._convicted = None
            sequence = open_sequences[verdict.sequence_id]
            samples = list(sequence.request.open_sequences) if verdict.of_request else [sequence]
            yield from ((sample, verdict.reason) for sample in samples)

    def on_worker_lost(self, work: Accusation) -> None:
        """A worker is gone that was at this; how it ended is not known yet."""
        self._lost_work = work

    def on_worker_restarted(self, crash: str | None) -> None:
        """The launcher says how the worker before ended, if what it was at may be to blame."""
        work, self._lost_work = self._lost_work, None
        if crash is not None and work is not None:
            self.accuse(work, crash, worker_ended=True)

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


def accusation_of_step(
    sequence_ids: list[SequenceId],
    plan: SentPlan,
    execution: int,
    open_sequences: Mapping[SequenceId, Sequence],
) -> Accusation:
    """Of a step that has failed: a prefill row is past it with its chunk.

    A decode row is computed as the end of a prefill when it is tried, so it must decode another token besides.
    """
    ends = {} if execution else {s.sequence_id: end for s, end in plan.prefill_rows}
    clear_at = {
        sequence_id: ends.get(sequence_id, open_sequences[sequence_id].num_tokens + 1)
        for sequence_id in sequence_ids
        if sequence_id in open_sequences
    }
    return Accusation(clear_at, len(sequence_ids))


def accusation_of_all(
    plans: Iterable[SentPlan],
    steps_in_flight: int,
    open_sequences: Mapping[SequenceId, Sequence],
) -> Accusation:
    """Of a worker that has crashed in some step of these plans.

    It may have been so many steps ahead of what was heard of it, and one more whose output was lost with it.
    """
    clear_at: dict[SequenceId, int] = {}
    for plan in plans:
        if plan.num_answered == 0:
            for sequence, end in plan.prefill_rows:
                clear_at[sequence.sequence_id] = max(end, clear_at.get(sequence.sequence_id, 0))
        for sequence in plan.token_rows:
            clear_at[sequence.sequence_id] = sequence.num_tokens + 2 + steps_in_flight
    are_open = {i: end for i, end in clear_at.items() if i in open_sequences}
    return Accusation(are_open, len(clear_at))
