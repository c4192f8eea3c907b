"""Any order of arrivals, chunks, grants, preemptions and reuse gives each sequence its own greedy answer."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from eager_graphs import add_eager_graphs, add_late_graphs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pillion.actors.gpu_worker import late_graphs
from pillion.actors.gpu_worker.input_preparer import InputPreparer
from pillion.actors.gpu_worker.plan_rows import PlanRows
from pillion.messages.steps import StepPlan

NUM_SLOTS = 4
BLOCK_SIZE = 4
NUM_BLOCKS = 100


@dataclass
class Sequence:
    """One sequence as a scheduler sees it."""

    prompt: list[int]
    max_tokens: int
    slot: int = -1
    generation: int = -1
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return len(self.tokens) == self.max_tokens


class Scheduler:
    """Makes plans by drawing everything that a scheduler decides."""

    def __init__(self, rig: Any, data: st.DataObject) -> None:
        self.rig = rig
        self.draw = data.draw
        self.free_blocks = list(range(NUM_BLOCKS))
        self.generations = [-1] * NUM_SLOTS
        num_sequences = self.draw(st.integers(1, 5))
        self.sequences = [
            Sequence(
                self.draw(st.lists(st.integers(0, 90), min_size=1, max_size=18)),
                self.draw(st.integers(1, 9)),
            )
            for _ in range(num_sequences)
        ]

    def run(self) -> None:
        for _ in range(60):
            if all(sequence.is_done for sequence in self.sequences):
                return
            self.turn()
        while not all(sequence.is_done for sequence in self.sequences):
            self.turn(hurry=True)

    def turn(self, hurry: bool = False) -> None:
        """One plan and its outputs."""
        rig, released, new, appends, rows = self.rig, [], [], [], []
        for sequence in self.sequences:
            if sequence.slot >= 0 and (
                sequence.is_done or (not hurry and self.draw(st.integers(0, 7)) == 0)
            ):
                released.append(sequence.slot)
                self.free_blocks += sequence.blocks
                sequence.blocks, sequence.slot, sequence.num_computed = [], -1, 0
        taken = {sequence.slot for sequence in self.sequences}
        free_slots = [slot for slot in range(NUM_SLOTS) if slot not in taken]
        for sequence in self.sequences:
            if sequence.is_done:
                continue
            if sequence.slot < 0:
                if not free_slots or (not hurry and self.draw(st.booleans())):
                    continue
                sequence.slot = free_slots.pop()
                self.generations[sequence.slot] += 1
                sequence.generation = self.generations[sequence.slot]
                known = sequence.prompt + sequence.tokens
                sequence.blocks = self.take(len(known))
                new.append(
                    rig.new(
                        sequence.slot,
                        known,
                        generation=sequence.generation,
                        num_prompt=len(sequence.prompt),
                        blocks=sequence.blocks,
                        max_tokens=sequence.max_tokens,
                    )
                )
            elif hurry or self.draw(st.booleans()):
                blocks = self.take(BLOCK_SIZE * self.draw(st.integers(1, 2)))
                if len(sequence.blocks) + len(blocks) <= 16:
                    sequence.blocks += blocks
                    appends += [(sequence.slot, block) for block in blocks]
                else:
                    self.free_blocks += blocks
            rows += self.row(sequence, hurry)
        plan = rig.plan(
            rows,
            new=new,
            released=released,
            appends=appends,
            repeat=self.draw(st.integers(1, 5)),
            generations=dict(enumerate(self.generations)),
        )
        self.take_outputs(rig.run(plan))

    def row(self, sequence: Sequence, hurry: bool) -> list[tuple[int, ...]]:
        num_known = len(sequence.prompt) + len(sequence.tokens)
        missing = num_known - sequence.num_computed
        if not hurry and self.draw(st.integers(0, 4)) == 0:
            return []
        if missing == 1 and self.draw(st.booleans()):
            return [(sequence.slot,)]
        length = missing if hurry else self.draw(st.integers(1, missing))
        start = sequence.num_computed
        if start + length > len(sequence.blocks) * BLOCK_SIZE:
            return []
        sequence.num_computed += length
        return [(sequence.slot, start, start + length)]

    def take(self, num_tokens: int) -> list[int]:
        count = -(-num_tokens // BLOCK_SIZE)
        taken, self.free_blocks = self.free_blocks[:count], self.free_blocks[count:]
        return taken

    def take_outputs(self, outputs: list[Any]) -> None:
        by_slot = {sequence.slot: sequence for sequence in self.sequences}
        for output in outputs:
            slots = memoryview(output.slots).cast("i")
            for slot, position, token in zip(
                slots,
                memoryview(output.positions).cast("i"),
                memoryview(output.token_ids).cast("i"),
                strict=True,
            ):
                sequence = by_slot[slot]
                assert position == len(sequence.prompt) + len(sequence.tokens)
                sequence.num_computed = position
                sequence.tokens.append(token)


@pytest.fixture
def rows_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were kept from the execution before are those that a choice would find."""
    rows = InputPreparer.rows

    def checked(self: InputPreparer, plan: StepPlan, execution: int) -> PlanRows:
        found, repeat = rows(self, plan, execution), self._repeat
        if execution:
            self._repeat = None
            np.testing.assert_array_equal(
                found.decode_slots, rows(self, plan, execution).decode_slots
            )
        self._repeat = repeat
        return found

    monkeypatch.setattr(InputPreparer, "rows", checked)


@pytest.fixture
def each_plan_is_behind_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """While graphs are left."""
    monkeypatch.setattr(late_graphs, "_PERIOD_NS", 0)


@pytest.mark.usefixtures("rows_are_checked", "each_plan_is_behind_a_capture")
@pytest.mark.parametrize("graphs", ["none", "all", "late"])
@pytest.mark.parametrize("steps_in_flight", [1, 2])
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_every_sequence_gets_its_own_answer(
    make_rig: Any, steps_in_flight: int, graphs: str, data: st.DataObject
) -> None:
    rig = make_rig(steps_in_flight=steps_in_flight)
    if graphs == "all":
        add_eager_graphs(rig)
    elif graphs == "late":
        add_late_graphs(rig)
    scheduler = Scheduler(rig, data)
    scheduler.run()
    for sequence in scheduler.sequences:
        assert sequence.tokens == rig.model.greedy(sequence.prompt, sequence.max_tokens)
