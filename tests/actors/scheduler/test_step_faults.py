"""Who is tried, in which order, and who is guilty."""

from types import SimpleNamespace
from typing import Any

import pytest
from scheduler_bench import Bench

from pillion.actors.scheduler.in_flight import SentPlan
from pillion.actors.scheduler.step_faults import (
    FAILED_ALONE,
    MAX_SUSPECTS,
    Accusation,
    StepFaults,
    accusation_of_all,
    accusation_of_step,
)

Open = dict[int, Any]


def open_at(num_computed: int, *sequence_ids: int) -> Open:
    return {i: SimpleNamespace(num_computed_tokens=num_computed) for i in sequence_ids}


def accused(faults: StepFaults, clear_at: dict[int, int], num_rows: int) -> int | None:
    """Who is convicted of a step of so many rows."""
    faults.accuse(Accusation(clear_at, num_rows), "a fault")
    sequences: Open = {i: SimpleNamespace(sequence_id=i) for i in clear_at}
    for sequence, reason in faults.take_convicted(sequences):
        assert reason == f"{FAILED_ALONE}: a fault"
        return sequence.sequence_id
    return None


def allowed(faults: StepFaults, *sequence_ids: int) -> list[int]:
    return [i for i in sequence_ids if faults.may_run(i)]


@pytest.fixture
def faults() -> StepFaults:
    return StepFaults()


def test_without_suspects_everybody_may_run(faults: StepFaults) -> None:
    assert not faults.next_trial({})
    assert faults.may_run(1)


def test_halves_are_tried_one_after_the_other(faults: StepFaults) -> None:
    assert accused(faults, dict.fromkeys((1, 2, 3, 4, 5), 10), num_rows=5) is None
    sequences = open_at(9, *range(1, 8))
    assert faults.next_trial(sequences)
    assert allowed(faults, *range(1, 8)) == [1, 2, 3]
    assert not faults.next_trial(sequences)
    for sequence_id in (1, 2, 3):
        sequences[sequence_id].num_computed_tokens = 10
    assert faults.next_trial(sequences)
    assert allowed(faults, *range(1, 8)) == [4, 5]
    del sequences[4]
    faults.forget(4)
    assert not faults.next_trial(sequences)
    sequences[5].num_computed_tokens = 11
    assert faults.next_trial(sequences)
    assert allowed(faults, *range(1, 8)) == list(range(1, 8))
    assert not any(map(faults.is_suspect, range(1, 8)))


def test_who_fails_alone_for_the_second_time_is_guilty(faults: StepFaults) -> None:
    sequences = open_at(0, 1, 2)
    assert accused(faults, {1: 5, 2: 5}, 2) is None
    assert faults.next_trial(sequences)
    assert accused(faults, {1: 5}, 1) == 1
    assert faults.next_trial(sequences)
    assert allowed(faults, 1, 2) == [2]


def test_one_failure_alone_is_no_proof(faults: StepFaults) -> None:
    assert accused(faults, {1: 5}, 1) is None
    assert faults.next_trial(open_at(0, 1))
    assert faults.next_trial(open_at(5, 1))
    assert accused(faults, {1: 9}, 1) is None
    assert faults.next_trial(open_at(5, 1))
    assert accused(faults, {1: 9}, 1) == 1


def test_the_last_one_left_of_a_step_was_not_alone_in_it(faults: StepFaults) -> None:
    assert accused(faults, {1: 5, 2: 5}, 2) is None
    assert accused(faults, {1: 5}, 2) is None
    assert accused(faults, {1: 5}, 1) == 1


def test_those_that_are_not_here_do_not_hold_up_others_and_are_tried_when_they_come(
    faults: StepFaults,
) -> None:
    accused(faults, {1: 5, 2: 5}, 2)
    assert faults.next_trial(open_at(0, 2, 3))
    assert allowed(faults, 1, 2, 3) == [2]
    assert faults.next_trial(open_at(0, 3))
    assert allowed(faults, 1, 2, 3) == [1, 2, 3]
    assert faults.next_trial(open_at(0, 1, 3))
    assert allowed(faults, 1, 2, 3) == [1]


def test_suspects_that_never_come_again_are_forgotten(faults: StepFaults) -> None:
    for sequence_id in range(MAX_SUSPECTS + 3):
        accused(faults, {sequence_id: 1, -1 - sequence_id: 1}, 2)
    assert not faults.is_suspect(0)
    assert faults.is_suspect(MAX_SUSPECTS)
    faults.next_trial({})


def test_a_prefill_row_is_past_the_step_with_its_chunk_and_a_decode_row_a_token_later() -> None:
    bench = Bench()
    bench.submit(100, 8, max_tokens=50)
    bench.submit(200, 8, max_tokens=50)
    sequences = bench.scheduler._book.open
    plan = SentPlan(
        plan_id=1, repeat=2, token_rows=[sequences[200]], prefill_rows=[(sequences[100], 6)]
    )
    accusation = accusation_of_step([100, 200, 300], plan, 0, sequences)
    assert accusation == Accusation({100: 6, 200: 9}, num_rows=3)
    assert accusation_of_step([100], plan, 1, sequences) == Accusation({100: 9}, num_rows=1)


def test_of_a_worker_that_crashed_everyone_in_flight_is_accused_up_to_where_it_may_have_been() -> (
    None
):
    bench = Bench()
    for sequence_id in (100, 200, 300):
        bench.submit(sequence_id, 8, max_tokens=50)
    sequences = bench.scheduler._book.open
    answered = SentPlan(
        plan_id=1,
        repeat=64,
        token_rows=[sequences[200]],
        prefill_rows=[(sequences[200], 8)],
        num_answered=3,
    )
    chunk = SentPlan(plan_id=2, repeat=1, token_rows=[], prefill_rows=[(sequences[100], 6)])
    end = SentPlan(
        plan_id=3, repeat=1, token_rows=[sequences[300]], prefill_rows=[(sequences[300], 8)]
    )
    gone = sequences.pop(300)
    accusation = accusation_of_all(
        [answered, chunk, end], steps_in_flight=2, open_sequences=sequences
    )
    assert accusation == Accusation({200: 12, 100: 6}, num_rows=3)
    sequences[300] = gone


def test_a_crash_accuses_when_it_is_told_and_convicts_who_is_not_here_yet(
    faults: StepFaults,
) -> None:
    faults.on_worker_lost(Accusation({1: 5}, 1))
    faults.on_worker_restarted(None)
    assert not faults.is_suspect(1)
    for _ in range(2):
        faults.on_worker_lost(Accusation({1: 5}, 1))
        faults.on_worker_restarted("SIGSEGV")
    assert list(faults.take_convicted({})) == []
    samples: list[Any] = [SimpleNamespace(), SimpleNamespace()]
    samples[0].request = SimpleNamespace(open_sequences=samples)
    convicted = list(faults.take_convicted({1: samples[0]}))
    assert convicted == [(sample, f"{FAILED_ALONE}: SIGSEGV") for sample in samples]
    assert list(faults.take_convicted({1: samples[0]})) == []
