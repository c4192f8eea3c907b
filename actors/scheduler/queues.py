"""The queue of sequences that wait: by priority, then by fair share, then by arrival."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from pillion.actors.scheduler.fair_share import PREFILL_TOKEN_COST, Client
from pillion.actors.scheduler.sequence import Sequence

Rank = tuple[int, int, int]
# priority, virtual finish, arrival, sequence id, version
LaneKey = tuple[int, int, int, int, int]

_MIN_STALE_ENTRIES: Final = 64


@dataclass(slots=True, eq=False)
class _Lane:
    """What one client has waiting at one priority, in order of arrival."""

    priority: int
    client: Client
    ranks: list[Rank] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    version: int = 0  # set anew with each new head; heap entries with another version are stale

    def key(self) -> LaneKey:
        head = self.sequences[0]
        cost = 0 if head.was_charged else head.num_tokens * PREFILL_TOKEN_COST
        finish = self.client.served + cost
        return (self.priority, finish, head.rank[1], head.sequence_id, self.version)


class WaitingQueue:
    """Picks the lowest priority number; among its clients the one whose next prompt ends first in virtual time.

    That is weighted fair queueing: a client's long prompt does not hold up another's short one, and who
    has been served much waits. One client's own sequences go in order of arrival; a preempted sequence
    has its old arrival and thereby the first place. Every operation takes logarithmic time, apart from
    moving at most as many pointers as the client has sequences.
    """

    def __init__(self) -> None:
        self._lanes: dict[tuple[int, int], _Lane] = {}
        # Keys may be too low, because a client was served since; they are corrected when they come up.
        self._heap: list[tuple[LaneKey, _Lane]] = []
        self._num_waiting = 0
        self._last_version = 0

    def __len__(self) -> int:
        """Sequences in the queue."""
        return self._num_waiting

    def push(self, sequence: Sequence) -> None:
        """Puts a sequence in its client's place."""
        client, priority = sequence.request.client, sequence.request.priority
        lane = self._lanes.get((priority, client.key))
        if lane is None:
            lane = self._lanes[(priority, client.key)] = _Lane(priority, client)
        place = bisect_left(lane.ranks, sequence.rank)
        insort(lane.ranks, sequence.rank)
        lane.sequences.insert(place, sequence)
        self._num_waiting += 1
        if place == 0:
            self._enter(lane)

    def peek(self) -> Sequence | None:
        """The sequence whose turn it is."""
        lane = self._first_lane()
        return None if lane is None else lane.sequences[0]

    def pop(self) -> Sequence | None:
        """Takes the sequence whose turn it is out of the queue."""
        lane = self._first_lane()
        return None if lane is None else self._take(lane, 0)

    def remove(self, sequence: Sequence) -> None:
        """Takes out a sequence that is in the queue."""
        lane = self._lanes[(sequence.request.priority, sequence.request.client.key)]
        self._take(lane, bisect_left(lane.ranks, sequence.rank))

    def take_all(self) -> list[Sequence]:
        """Takes everybody out."""
        sequences = [sequence for lane in self._lanes.values() for sequence in lane.sequences]
        self._lanes.clear()
        self._heap.clear()
        self._num_waiting = 0
        return sequences

    def _take(self, lane: _Lane, place: int) -> Sequence:
        del lane.ranks[place]
        sequence = lane.sequences.pop(place)
        self._num_waiting -= 1
        if not lane.sequences:
            lane.version = 0
            del self._lanes[(lane.priority, lane.client.key)]
        elif place == 0:
            self._enter(lane)
        return sequence

    def _enter(self, lane: _Lane) -> None:
        """Gives a lane with a new head its place in the heap."""
        self._last_version += 1
        lane.version = self._last_version
        heappush(self._heap, (lane.key(), lane))
        if len(self._heap) > 2 * len(self._lanes) + _MIN_STALE_ENTRIES:
            self._heap = [(lane.key(), lane) for lane in self._lanes.values()]
            heapify(self._heap)

    def _first_lane(self) -> _Lane | None:
        while self._heap:
            key, lane = self._heap[0]
            if key[-1] != lane.version:
                heappop(self._heap)
                continue
            current = lane.key()
            if current == key:
                return lane
            heapreplace(self._heap, (current, lane))
        return None
