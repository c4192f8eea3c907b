"""Deadlines come up in order and leave nothing behind."""

from test_queues import waiting

from pillion.actors.scheduler.deadlines import Deadlines
from pillion.actors.scheduler.fair_share import Client
from pillion.actors.scheduler.sequence import Request


def request(number: int, deadline_ns: int | None) -> Request:
    sequence = waiting(number, Client(1, 0))
    sequence.request.deadline_ns = deadline_ns
    sequence.request.open_sequences.append(sequence)
    return sequence.request


def test_the_next_deadline_is_that_of_an_open_request() -> None:
    deadlines = Deadlines()
    requests = [request(number, deadline) for number, deadline in enumerate((30, 10, None, 20))]
    for item in requests:
        deadlines.add(item)
    assert deadlines.next_ns() == 10
    requests[1].open_sequences.clear()
    deadlines.discard(requests[1])
    assert deadlines.next_ns() == 20
    assert deadlines.due(19) is None
    assert deadlines.due(20) is requests[3]
    assert deadlines.due(99) is requests[3]
    requests[3].open_sequences.clear()
    deadlines.discard(requests[3])
    assert deadlines.due(99) is requests[0]


def test_deadlines_far_away_do_not_pile_up() -> None:
    deadlines = Deadlines()
    for number in range(5000):
        item = request(number, 10**15 + number)
        deadlines.add(item)
        item.open_sequences.clear()
        deadlines.discard(item)
        assert len(deadlines) < 150
