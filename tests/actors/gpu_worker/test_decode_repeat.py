"""Repeats of a plan whose rows stay as they are take over what the execution before has found."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from eager_graphs import add_eager_graphs

from pillion.actors.gpu_worker.plan_rows import PlanRows
from pillion.messages.codec import unpack_ids
from pillion.messages.steps import StepOutput, StepPlan

NUM_ROWS = 3


@pytest.fixture
def rig(make_rig: Callable[..., Any]) -> Any:
    """Decode steps are replays; three sequences have read their prompts."""
    rig = make_rig(steps_in_flight=2)
    add_eager_graphs(rig)
    rig.step([(s, 0, 2) for s in range(NUM_ROWS)], new=[new(rig, s) for s in range(NUM_ROWS)])
    return rig


def new(rig: Any, slot: int, **fields: Any) -> Any:
    return rig.new(slot, [slot + 1, slot + 2], **fields)


class Repeats:
    """The rows of a plan, execution by execution, each of which is prepared."""

    def __init__(self, rig: Any, plan: StepPlan) -> None:
        self.preparer, self.plan = rig.worker._steps._input_preparer, plan
        self.preparer.apply(plan)
        self.preparer.prepare(self.preparer.rows(plan, 0))

    def next(self) -> PlanRows:
        rows: PlanRows = self.preparer.rows(self.plan, 1)
        self.preparer.prepare(rows)
        return rows


def test_rows_and_inputs_are_kept_and_the_counters_go_on(rig: Any) -> None:
    repeats = Repeats(rig, rig.plan([(0,), (2,)]))
    states, first = rig.states, repeats.next()
    before = states.num_computed_np.tolist(), states.num_known_np.tolist()
    assert repeats.next() is first
    inputs = repeats.preparer.prepare(repeats.preparer.rows(repeats.plan, 1))
    assert inputs is repeats.preparer.prepare(repeats.preparer.rows(repeats.plan, 1))
    advanced = np.array([3, 0, 3, 0, 0, 0])
    assert states.num_computed_np.tolist() == (before[0] + advanced).tolist()
    assert states.num_known_np.tolist() == (before[1] + advanced).tolist()


@pytest.mark.parametrize("what", ["finished", "released", "seated", "withheld"])
def test_whatever_happens_to_a_slot_has_them_chosen_again(rig: Any, what: str) -> None:
    slot = np.array([1], dtype=np.int32)
    repeats = Repeats(rig, rig.plan([(0,), (1,), (2,)]))
    if what == "seated":
        repeats.preparer.release(slot)
    first = repeats.next()
    if what == "finished":
        rig.states.note_finished(slot, rig.states.generation_np[slot])
    elif what == "withheld":
        rig.states.withhold(slot)
    elif what == "released":
        repeats.preparer.release(slot)
    else:
        repeats.preparer.apply(rig.plan([], new=[new(rig, 1, num_computed=1)]))
    rows = repeats.next()
    assert rows is not first
    there = what in ("withheld", "seated")
    assert rows.decode_slots.tolist() == ([0, 1, 2] if there else [0, 2])


def test_a_row_without_room_is_left_out_when_its_blocks_are_full(rig: Any) -> None:
    blocks = rig.blocks(8)
    rig.step([(3, 0, 2)], new=[new(rig, 3, blocks=blocks)])
    repeats = Repeats(rig, rig.plan([(0,), (3,)]))
    found = [repeats.next().decode_slots.tolist() for _ in range(7)]
    assert found == [[0, 3]] * 5 + [[0]] * 2


def test_another_plan_with_as_many_rows_has_its_own(rig: Any) -> None:
    assert Repeats(rig, rig.plan([(0,), (1,)])).next().decode_slots.tolist() == [0, 1]
    assert Repeats(rig, rig.plan([(0,), (2,)])).next().decode_slots.tolist() == [0, 2]


def test_answers_of_rows_that_go_on_share_what_does_not_change(rig: Any) -> None:
    outputs = rig.step([(0,), (1,), (2,)], repeat=6)[1:]
    for name in ("sequence_ids", "slots", "generations", "num_tokens", "finish"):
        assert len({id(getattr(output, name)) for output in outputs}) == 1, name
    for slot in range(NUM_ROWS):
        assert rig.tokens(1000 + 10 * slot) == rig.model.greedy([slot + 1, slot + 2], 7)


def test_answers_with_rows_that_end_say_so_and_those_behind_leave_them_out(rig: Any) -> None:
    rig.step([], released=[1])
    rig.step([(1, 0, 2)], new=[new(rig, 1, generation=1, max_tokens=3)])
    outputs: list[StepOutput] = rig.step([(0,), (1,), (2,)], repeat=6)
    told = [(unpack_ids(output.slots), list(output.finish)) for output in outputs]
    assert told == [([0, 1, 2], [0, 0, 0]), ([0, 1, 2], [0, 2, 0])] + [([0, 2], [0, 0])] * 4
    assert rig.tokens(1011) == rig.model.greedy([2, 3], 3)
    assert rig.tokens(1000) == rig.model.greedy([1, 2], 7)


def test_rows_in_the_same_slots_are_answered_as_those_who_are_there_now(make_rig: Any) -> None:
    """Without graphs: what depends on slots alone is kept for the tenant who comes."""
    rig = make_rig()
    blocks = rig.blocks(16)
    rig.step([(0, 0, 2)], new=[new(rig, 0, blocks=blocks)])
    rig.step([(0,)])
    # All that it needs is in the blocks, so it has no prompt to read.
    again = new(rig, 0, blocks=blocks, generation=1, num_computed=1)
    rig.step([(0,)], released=[0], new=[again])
    assert rig.tokens(1000) == rig.model.greedy([1, 2], 2)
    assert rig.tokens(1001) == rig.model.greedy([1, 2], 1)
