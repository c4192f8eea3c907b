"""The fake worker keeps the rules of messages/steps.py and catches whoever breaks them."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from fake_edge import make_sampling
from fake_model import FakeModel
from fake_worker import FakeWorker

from pillion.messages.codec import pack_ids, unpack_ids
from pillion.messages.ids import FINISH_ERROR, FINISH_LENGTH, FINISH_STOP
from pillion.messages.sampling import TokenSampling
from pillion.messages.steps import NewSequence, StepOutput, StepPlan
from pillion.runtime.errors import InvariantBroken

BLOCK = 4
MODEL = FakeModel(vocab_size=50, max_model_len=40)


@dataclass(frozen=True)
class Row:
    slot: int
    start: int = -1
    num_tokens: int = 1
    generation: int = 0


class Bench:
    """A fake worker and a scheduler's hands."""

    def __init__(self, model: FakeModel = MODEL, steps_in_flight: int = 1) -> None:
        self.worker = FakeWorker(model, 4, 16, BLOCK, steps_in_flight)
        self.next_plan_id = 0

    def plan(
        self,
        *rows: Row,
        repeat: int = 1,
        new: list[NewSequence] | None = None,
        append: list[tuple[int, int]] | None = None,
        released: list[int] | None = None,
    ) -> None:
        plan = StepPlan(
            epoch=1,
            plan_id=self.next_plan_id,
            repeat=repeat,
            slots=pack_ids(row.slot for row in rows),
            generations=pack_ids(row.generation for row in rows),
            starts=pack_ids(row.start for row in rows),
            num_tokens=pack_ids(row.num_tokens for row in rows),
            append_slots=pack_ids(slot for slot, _ in append or []),
            append_groups=pack_ids(0 for _ in append or []),
            append_blocks=pack_ids(block for _, block in append or []),
            new_sequences=new or [],
            released_slots=pack_ids(released or []),
        )
        self.next_plan_id += 1
        self.worker.on_message(plan, 0)

    def step(self) -> list[StepOutput]:
        """One turn; the outputs that went to the scheduler."""
        self.worker.tick(0)
        outputs = [message for name, message in self.worker.outgoing if name == "scheduler"]
        assert outputs == [
            message for name, message in self.worker.outgoing if name == "detokenizer"
        ]
        self.worker.outgoing.clear()
        return [output for output in outputs if isinstance(output, StepOutput)]

    def drain(self) -> list[StepOutput]:
        outputs = []
        while self.worker.has_work:
            outputs += self.step()
        return outputs


def sequence(
    slot: int,
    prompt: list[int],
    block_ids: list[int],
    sampling: TokenSampling | None = None,
    num_computed_tokens: int = 0,
    generation: int = 0,
) -> NewSequence:
    return NewSequence(
        sequence_id=100 + slot,
        slot=slot,
        generation=generation,
        token_ids=pack_ids(prompt),
        num_prompt_tokens=len(prompt),
        num_computed_tokens=num_computed_tokens,
        block_ids=[pack_ids(block_ids)],
        sampling=sampling or make_sampling(max_tokens=20),
    )


def tokens(outputs: list[StepOutput]) -> list[list[int]]:
    return [unpack_ids(output.token_ids) for output in outputs]


def test_prefill_in_chunks_and_decode_give_the_tokens_of_the_model_alone() -> None:
    bench = Bench()
    prompt = [3, 1, 4, 1, 5, 9]
    sampling = make_sampling(max_tokens=6)
    bench.plan(Row(0, 0, 4), new=[sequence(0, prompt, [7, 2, 5], sampling)])
    bench.plan(Row(0, 4, 2), repeat=10)
    outputs = bench.drain()
    expected, finish = MODEL.alone(prompt, sampling)
    assert tokens(outputs) == [[], *([token] for token in expected)]
    assert [output.execution for output in outputs] == [0, 0, 1, 2, 3, 4, 5]
    assert [output.plan_id for output in outputs] == [0, 1, 1, 1, 1, 1, 1]
    assert [output.step_id for output in outputs] == list(range(7))
    assert unpack_ids(outputs[-1].positions) == [11]
    assert outputs[-1].finish[0] == finish == FINISH_LENGTH


def test_a_newer_plan_ends_the_repeats_but_every_plan_has_its_turn() -> None:
    bench = Bench()
    bench.plan(Row(0, 0, 2), repeat=8, new=[sequence(0, [1, 2], [0, 1, 2])])
    assert [output.execution for output in (bench.step() + bench.step())] == [0, 1]
    bench.plan(Row(0), repeat=8)
    bench.plan(repeat=8)
    outputs = bench.drain()
    assert [(output.plan_id, output.execution) for output in outputs] == [(1, 0), (2, 0)]
    assert [len(found) for found in tokens(outputs)] == [1, 0]


def test_a_row_without_capacity_is_masked_until_it_gets_a_block() -> None:
    bench = Bench()
    bench.plan(Row(0, 0, 3), repeat=9, new=[sequence(0, [1, 2, 3], [6])])
    assert [len(found) for found in tokens(bench.drain())] == [1, 1]
    bench.plan(Row(0), append=[(0, 9)], repeat=2)
    assert [len(found) for found in tokens(bench.drain())] == [1, 1]


def test_a_finished_row_is_masked_though_the_host_learns_it_late() -> None:
    prompt, sampling = [1, 2, 3], make_sampling(max_tokens=20)
    produced, _ = MODEL.alone(prompt, sampling)
    stop = make_sampling(max_tokens=20, stop_token_ids=[produced[2]])
    bench = Bench(steps_in_flight=2)
    bench.plan(Row(0, 0, 3), repeat=9, new=[sequence(0, prompt, list(range(8)), stop)])
    outputs = bench.drain()
    assert [len(found) for found in tokens(outputs)] == [1, 1, 1, 0]
    assert outputs[2].finish[0] == FINISH_STOP


def test_min_tokens_keeps_stop_ids_away() -> None:
    prompt = [1, 2, 3]
    produced, _ = MODEL.alone(prompt, make_sampling(max_tokens=20))
    sampling = make_sampling(max_tokens=20, stop_token_ids=[produced[0]], min_tokens=3)
    found, _ = MODEL.alone(prompt, sampling)
    assert len(found) >= 3
    assert produced[0] not in found[:3]


def test_a_poisoned_row_fails_without_a_token() -> None:
    bench = Bench(FakeModel(vocab_size=50, max_model_len=40, poison_every=1))
    bench.plan(Row(0, 0, 2), new=[sequence(0, [1, 2], [0])])
    (output,) = bench.drain()
    assert list(output.finish) == [FINISH_ERROR]
    assert (unpack_ids(output.num_tokens), output.token_ids) == ([0], b"")
    assert output.errors == {0: "poisoned"}


def test_a_shared_prefix_is_read_and_its_writer_is_known() -> None:
    bench = Bench()
    prompt = [1, 2, 3, 4, 5]
    bench.plan(Row(0, 0, 5), new=[sequence(0, prompt, [3, 4])])
    bench.plan(Row(1, 4, 1), new=[sequence(1, prompt, [3, 6], num_computed_tokens=4)])
    first, second = tokens(bench.drain())
    assert first == second
    assert bench.worker.shared == {(101, 100)}


def wrong_prefix_hit(bench: Bench) -> None:
    bench.plan(Row(1, 4, 1), new=[sequence(1, [1, 2, 3, 9, 5], [3, 6], num_computed_tokens=4)])


def block_of_another(bench: Bench) -> None:
    bench.plan(Row(1, 0, 3), new=[sequence(1, [7, 8, 9], [4])])


def slot_of_another(bench: Bench) -> None:
    bench.plan(new=[sequence(0, [7, 8, 9], [8])])


def stale_generation(bench: Bench) -> None:
    bench.plan(Row(0, generation=1))


def hole_in_the_prefill(bench: Bench) -> None:
    bench.plan(Row(1, 2, 1), new=[sequence(1, [7, 8, 9], [8])])


def prefill_without_blocks(bench: Bench) -> None:
    bench.plan(Row(1, 0, 5), new=[sequence(1, [7, 8, 9, 7, 8], [8])])


def two_rows_of_one_slot(bench: Bench) -> None:
    bench.plan(Row(0), Row(0))


def plan_out_of_order(bench: Bench) -> None:
    bench.next_plan_id += 1
    bench.plan(Row(0))


def no_execution(bench: Bench) -> None:
    bench.plan(Row(0), repeat=0)


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (wrong_prefix_hit, r"foreign content in block 3 at positions 0 to 4, written by \[100"),
        (block_of_another, "writes to block 4 of"),
        (slot_of_another, "slot 0 of 4 is not free"),
        (stale_generation, "generation 1 of slot 0"),
        (hole_in_the_prefill, r"row 2\.\.3"),
        (prefill_without_blocks, r"no blocks for 0\.\.5"),
        (two_rows_of_one_slot, "a slot has two rows"),
        (plan_out_of_order, "plan 2, expected 1"),
        (no_execution, "repeat 0"),
    ],
)
def test_whoever_breaks_a_rule_is_caught(break_it: Callable[[Bench], None], says: str) -> None:
    bench = Bench()
    bench.plan(Row(0, 0, 5), new=[sequence(0, [1, 2, 3, 4, 5], [3, 4])])
    bench.drain()

    def run() -> None:
        break_it(bench)
        bench.drain()

    with pytest.raises(InvariantBroken, match=says):
        run()


def test_a_block_is_not_written_again_before_its_release_is_answered() -> None:
    bench = Bench(steps_in_flight=2)
    bench.plan(Row(0, 0, 5), new=[sequence(0, [1, 2, 3, 4, 5], [3, 4])])
    bench.drain()
    bench.plan(released=[0])
    bench.plan(Row(1, 0, 3), new=[sequence(1, [7, 8, 9], [4])])
    with pytest.raises(InvariantBroken, match="before plan 1, which released it, is answered"):
        bench.drain()
