"""Whose turn it is, whatever comes between."""

import pytest

from pillion.actors.gpu_worker.plan_queue import PlanQueue
from pillion.messages.steps import StepPlan
from pillion.runtime.errors import InvariantBroken


def plan(plan_id: int, repeat: int = 1, *, fresh: bool = False, epoch: int = 1) -> StepPlan:
    return StepPlan(
        epoch=epoch,
        plan_id=plan_id,
        repeat=repeat,
        slots=b"",
        generations=b"",
        starts=b"",
        num_tokens=b"",
        fresh=fresh,
    )


def turns(queue: PlanQueue, most: int = 20) -> list[tuple[int, int]]:
    """Plan and execution of each turn until there is none."""
    found = []
    while len(found) < most and (turn := queue.turn()) is not None:
        found.append((turn[0].plan_id, turn[1]))
        queue.note_executed()
    return found


def test_a_grant_lasts_until_the_next_plan() -> None:
    queue = PlanQueue()
    queue.add(plan(5, repeat=9))
    assert turns(queue, most=2) == [(5, 0), (5, 1)]
    assert queue.has_any
    assert not queue.has_newer
    queue.add(plan(6))
    queue.add(plan(7, repeat=2))
    assert queue.has_newer
    assert turns(queue) == [(6, 0), (7, 0), (7, 1)]
    assert not queue.has_any


def test_a_grant_ends_when_nothing_can_go_on() -> None:
    queue = PlanQueue()
    queue.add(plan(1, repeat=9))
    assert turns(queue, most=1) == [(1, 0)]
    queue.end_grant()
    assert queue.turn() is None


def test_a_plan_that_is_missing_is_no_plan_to_go_on_without() -> None:
    queue = PlanQueue()
    queue.add(plan(1))
    with pytest.raises(InvariantBroken, match="plan 3 follows plan 1"):
        queue.add(plan(3))


def test_after_a_failed_step_only_a_fresh_plan_counts() -> None:
    queue = PlanQueue()
    queue.add(plan(1, repeat=9))
    queue.await_fresh()
    queue.add(plan(2))
    assert not queue.has_any
    queue.add(plan(9, fresh=True))
    queue.add(plan(10))
    assert turns(queue) == [(9, 0), (10, 0)]


def test_a_new_scheduler_begins_with_nothing() -> None:
    queue = PlanQueue()
    queue.add(plan(1, repeat=9))
    queue.await_fresh()
    assert not queue.adopt(1)
    assert queue.adopt(3)
    queue.add(plan(1, epoch=3))
    assert turns(queue) == [(1, 0)]
