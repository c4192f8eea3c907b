"""What plans in flight may still bring."""

import pytest
from test_queues import waiting

from pillion.actors.scheduler.fair_share import Client
from pillion.actors.scheduler.in_flight import InFlight, SentPlan
from pillion.actors.scheduler.sequence import Sequence
from pillion.runtime.errors import InvariantBroken


def ahead(in_flight: InFlight, *sequences: Sequence) -> list[tuple[int, int]]:
    in_flight.count_ahead(sequences)
    return [(sequence.min_ahead, sequence.max_ahead) for sequence in sequences]


def test_a_plan_runs_once_for_sure_and_its_repeats_perhaps() -> None:
    first, second = waiting(1, Client(1, 0)), waiting(2, Client(1, 0))
    in_flight = InFlight()
    in_flight.add(SentPlan(1, 10, [first]))
    assert ahead(in_flight, first, second) == [(1, 10), (0, 0)]
    in_flight.answer(1, 0)
    assert ahead(in_flight, first, second) == [(0, 9), (0, 0)]
    in_flight.add(SentPlan(2, 4, [first, second]))
    assert (in_flight.num_unanswered, in_flight.num_steps_left) == (1, 4)
    assert ahead(in_flight, first, second) == [(1, 13), (1, 4)]
    in_flight.answer(1, 1)
    in_flight.answer(2, 0)
    assert ahead(in_flight, first, second) == [(0, 3), (0, 3)]
    assert (in_flight.num_unanswered, in_flight.num_steps_left) == (0, 3)


def test_steps_left_counts_what_the_worker_has_to_do() -> None:
    in_flight = InFlight()
    assert (in_flight.num_steps_left, in_flight.newest_repeat) == (0, 0)
    in_flight.add(SentPlan(1, 1, []))
    in_flight.add(SentPlan(2, 8, []))
    assert (in_flight.num_steps_left, in_flight.num_repeats_left) == (9, 7)
    in_flight.answer(1, 0)
    assert in_flight.num_steps_left == 8
    for execution in range(8):
        in_flight.answer(2, execution)
    assert (in_flight.num_steps_left, in_flight.newest_repeat) == (0, 0)


@pytest.mark.parametrize(("plan_id", "execution"), [(1, 1), (1, 2), (2, 1), (3, 0), (0, 0)])
def test_answers_come_in_order(plan_id: int, execution: int) -> None:
    in_flight = InFlight()
    in_flight.add(SentPlan(1, 1, []))
    in_flight.add(SentPlan(2, 2, []))
    in_flight.answer(1, 0)
    with pytest.raises(InvariantBroken, match=f"execution {execution} of plan {plan_id}"):
        in_flight.answer(plan_id, execution)


def test_a_plan_before_a_newer_ones_answer_is_over() -> None:
    in_flight = InFlight()
    in_flight.add(SentPlan(1, 5, []))
    in_flight.answer(1, 0)
    in_flight.add(SentPlan(2, 5, []))
    in_flight.answer(2, 0)
    with pytest.raises(InvariantBroken):
        in_flight.answer(1, 1)


def test_a_plan_cannot_be_skipped() -> None:
    in_flight = InFlight()
    in_flight.add(SentPlan(1, 5, []))
    in_flight.add(SentPlan(2, 5, []))
    with pytest.raises(InvariantBroken):
        in_flight.answer(2, 0)
