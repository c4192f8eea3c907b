"""Rows of a StepOutput: which count, and what they change."""

import pytest
from scheduler_bench import Bench

from pillion.messages.codec import pack_ids, pack_int64
from pillion.messages.ids import FINISH_ERROR, FINISH_NONE, FINISH_STOP
from pillion.messages.steps import StepOutput
from pillion.runtime.errors import InvariantBroken


def output(
    sequence_id: int = 100,
    slot: int = 0,
    generation: int = 1,
    position: int = 8,
    tokens: tuple[int, ...] = (7,),
    finish: int = FINISH_NONE,
) -> StepOutput:
    return StepOutput(
        epoch=1,
        step_id=0,
        plan_id=1,
        execution=0,
        sequence_ids=pack_int64([sequence_id]),
        slots=pack_ids([slot]),
        generations=pack_ids([generation]),
        positions=pack_ids([position]),
        num_tokens=pack_ids([len(tokens)]),
        token_ids=pack_ids(tokens),
        finish=bytes([finish]),
    )


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.submit(100, 8, max_tokens=50)
    return made


def test_a_row_may_bring_several_tokens(bench: Bench) -> None:
    bench.send(output(tokens=(7, 8, 9)))
    sequence = bench.scheduler._book.open[100]
    assert sequence.token_ids[8:].tolist() == [7, 8, 9]
    assert sequence.num_computed_tokens == 10
    assert sequence.request.client.served == 8 + 2 * 3
    assert bench.scheduler.counters["generated_tokens"] == 3


@pytest.mark.parametrize(
    "late", [{"generation": 2}, {"slot": 1}, {"sequence_id": 99}], ids=lambda late: str(late)
)
def test_a_row_of_somebody_else_is_stale(bench: Bench, late: dict[str, int]) -> None:
    bench.send(output(**late))  # type: ignore[arg-type]
    assert bench.scheduler.counters["stale_rows"] == 1
    assert bench.scheduler.counters["generated_tokens"] == 0


@pytest.mark.parametrize("position", [7, 9])
def test_a_row_that_does_not_continue_its_sequence_is_a_broken_ring(
    bench: Bench, position: int
) -> None:
    with pytest.raises(InvariantBroken, match=f"starts at position {position}, 8 tokens"):
        bench.send(output(position=position))


def test_a_stop_ends_it_with_the_stop_token(bench: Bench) -> None:
    sequence = bench.scheduler._book.open[100]
    bench.send(output(finish=FINISH_STOP))
    assert (sequence.outcome, sequence.num_tokens) == ("stop", 9)
    assert bench.scheduler.counters["finished_stop"] == 1


def test_nothing_of_a_failed_step_is_committed(bench: Bench) -> None:
    bench.send(output(tokens=(), finish=FINISH_ERROR))
    assert bench.scheduler.counters["finished_error"] == 1
    bench.rest()
    plan_id = bench.plans[-1].plan_id
    bench.send(
        StepOutput(
            epoch=1,
            step_id=1,
            plan_id=plan_id,
            execution=0,
            sequence_ids=b"",
            slots=b"",
            generations=b"",
            positions=b"",
            num_tokens=b"",
            token_ids=b"",
            finish=b"",
        )
    )
    assert not bench.kv.open
    assert not bench.kv._index
