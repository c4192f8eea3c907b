"""What a plan looks like, and when one is sent."""

from scheduler_bench import Bench, Row

from pillion.messages.codec import unpack_ids
from pillion.messages.requests import RequestScheduled


def test_a_short_prompt_runs_and_decodes_on_one_plan() -> None:
    bench = Bench(max_repeat=64)
    bench.submit(100, 6, max_tokens=10)
    (plan,) = bench.plans
    assert bench.rows() == [Row(0, 0, 6)]
    assert plan.repeat == 10
    (new,) = plan.new_sequences
    # Blocks for all tokens but the last: 6 + 10 - 1 in blocks of 4.
    assert (new.num_prompt_tokens, len(unpack_ids(new.block_ids[0]))) == (6, 4)
    bench.run()
    assert bench.scheduler.counters["finished_length"] == 1
    assert len(bench.plans) == 2  # the second one releases the slot
    assert unpack_ids(bench.plans[1].released_slots) == [0]
    assert bench.rows() == []
    bench.nothing_is_left()


def test_decode_rows_come_first_and_prefill_chunks_fill_the_budget() -> None:
    bench = Bench(budget=16)
    bench.submit(100, 5, max_tokens=50)
    bench.step()
    bench.submit(200, 40)
    assert bench.rows(-2) == [Row(0, -1, 1), Row(1, 0, 15)]
    assert bench.rows(-1) == [Row(0, -1, 1), Row(1, 15, 15)]
    assert [plan.repeat for plan in bench.plans[-2:]] == [1, 1]
    bench.step(2)
    assert bench.rows(-1)[:2] == [Row(0, -1, 1), Row(1, 30, 10)]
    bench.run()
    bench.nothing_is_left()


def test_prefill_runs_ahead_by_two_plans_and_decode_follows_a_chunk_in_flight() -> None:
    bench = Bench(budget=8, max_repeat=1)
    bench.submit(100, 20)
    assert len(bench.plans) == 2
    bench.step()
    assert len(bench.plans) == 3
    bench.step()
    assert bench.rows(-2) == [Row(0, 16, 4)]
    assert bench.rows(-1) == [Row(0, -1, 1)]  # its last chunk has not been answered
    bench.run()
    bench.nothing_is_left()


def test_one_step_in_flight_is_lockstep() -> None:
    bench = Bench(budget=8, max_repeat=1, steps_in_flight=1)
    bench.submit(100, 20)
    for num_plans in (1, 2, 3):
        assert len(bench.plans) == num_plans
        bench.step()
    bench.nothing_is_left()


def test_a_grant_is_topped_up_at_half() -> None:
    bench = Bench(max_repeat=8)
    bench.submit(100, 4, max_tokens=100)
    assert [plan.repeat for plan in bench.plans] == [8]
    bench.step(3)
    assert len(bench.plans) == 1
    bench.step()
    assert [plan.repeat for plan in bench.plans] == [8, 8]
    assert bench.rows() == [Row(0, -1, 1)]


def test_an_arrival_makes_a_plan_at_once_that_ends_the_grant() -> None:
    bench = Bench(max_repeat=64, num_blocks=200)
    bench.submit(100, 4, max_tokens=100)
    bench.step(2)
    assert len(bench.plans) == 1
    bench.submit(200, 4, max_tokens=100)
    assert len(bench.plans) == 2
    assert bench.rows() == [Row(0, -1, 1), Row(1, 0, 4)]
    assert bench.plans[-1].repeat == 64


def test_a_grant_is_no_longer_than_anyone_needs() -> None:
    bench = Bench(max_repeat=64)
    bench.send(bench.request(100, 4, max_tokens=3), bench.request(200, 4, max_tokens=7))
    assert [plan.repeat for plan in bench.plans] == [7]
    bench.run()
    bench.nothing_is_left()


def test_one_token_needs_one_plan_and_no_decode_row() -> None:
    bench = Bench()
    bench.submit(100, 4, max_tokens=1)
    bench.run()
    assert [len(plan.slots) // 4 for plan in bench.plans] == [1, 0]
    bench.nothing_is_left()


def test_a_grant_shrinks_to_the_blocks_that_there_are() -> None:
    bench = Bench(num_slots=1, num_blocks=10, block_size=4, max_repeat=64)
    bench.submit(100, 4, max_tokens=36)
    assert bench.plans[0].repeat < 36
    bench.run()
    assert bench.scheduler.counters["finished_length"] == 1
    bench.nothing_is_left()


def test_a_slot_is_given_away_by_the_plan_that_releases_it() -> None:
    bench = Bench(num_slots=1)
    bench.send(bench.request(100, 4, max_tokens=2), bench.request(200, 4, max_tokens=2))
    bench.step(2)
    plan = bench.plans[-1]
    assert unpack_ids(plan.released_slots) == [0]
    assert [(new.slot, new.generation) for new in plan.new_sequences] == [(0, 2)]
    bench.nothing_is_left()


def test_the_edge_knows_the_cached_tokens_before_the_first_plan_has_the_sequence() -> None:
    bench = Bench()
    prompt = list(range(20))
    bench.submit(100, prompt)
    bench.run()
    bench.submit(200, prompt)
    first, second = bench.told(RequestScheduled)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 16)
    assert first.miss_reason == "cold"
    assert bench.plans[-1].new_sequences[0].num_computed_tokens == 16
    assert bench.rows() == [Row(0, 16, 4)]


def test_no_more_sequences_run_than_a_step_has_tokens() -> None:
    bench = Bench(num_slots=4, budget=2)
    for request_id in (100, 200, 300):
        bench.submit(request_id, 3, max_tokens=5)
    bench.step(4)
    assert bench.scheduler.gauges["running"] == 2
    assert all(sum(unpack_ids(plan.num_tokens)) <= 2 for plan in bench.plans)
    bench.nothing_is_left()


def test_a_stream_gets_its_token_in_each_step_of_a_long_prompt() -> None:
    """Its share is a token a step, and a step has no more tokens than the budget: no gap is longer than that."""
    budget, num_tokens = 64, 6_400
    bench = Bench(budget=budget, num_blocks=2_000, max_model_len=8_000, max_repeat=64)
    bench.submit(100, 8, max_tokens=1_000)
    bench.step(2)
    bench.submit(200, num_tokens, max_tokens=1)
    first = len(bench.plans)
    while bench.scheduler._book.open[200].num_computed_tokens < num_tokens - budget:
        bench.step()
    plans = bench.plans[first:]
    assert len(plans) >= num_tokens // budget
    slot = bench.scheduler._book.open[100].slot
    for place in range(first, len(bench.plans)):
        rows = bench.rows(place)
        assert [row.num_tokens for row in rows if row.slot == slot] == [1]
        assert sum(row.num_tokens for row in rows) <= budget
