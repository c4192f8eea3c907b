"""Who must go when there are no blocks left, and what becomes of it."""

from scheduler_bench import Bench

from pillion.messages.blocks import ReleaseBlocks
from pillion.messages.codec import unpack_ids


def crowded(**options: int) -> Bench:
    """Two whose answers do not fit together: 12 blocks of 4 for twice 40 tokens."""
    bench = Bench(num_slots=2, num_blocks=12, block_size=4, max_repeat=4)
    bench.send(
        bench.request(100, 8, max_tokens=32, **options),
        bench.request(200, 8, max_tokens=32),
    )
    return bench


def until_preempted(bench: Bench) -> None:
    while not bench.scheduler.counters["preemptions"]:
        bench.step()


def test_the_latest_arrival_goes_and_both_finish_with_their_tokens() -> None:
    bench = crowded()
    until_preempted(bench)
    assert unpack_ids(bench.plans[-1].released_slots) == [1]
    bench.run()
    assert bench.scheduler.counters["finished_length"] == 2
    (resumed,) = [
        new
        for plan in bench.plans
        for new in plan.new_sequences
        if len(new.token_ids) > 4 * new.num_prompt_tokens
    ]
    assert resumed.sequence_id == 200
    sampling = bench.request(200, 8, max_tokens=32).sampling
    alone, _ = bench.model.alone(unpack_ids(resumed.token_ids)[:8], sampling)
    assert unpack_ids(resumed.token_ids)[8:] == alone[: len(resumed.token_ids) // 4 - 8]
    bench.nothing_is_left()


def test_the_worse_priority_goes_whatever_its_arrival() -> None:
    bench = crowded(priority=1)
    until_preempted(bench)
    assert unpack_ids(bench.plans[-1].released_slots) == [
        new.slot for new in bench.plans[0].new_sequences if new.sequence_id == 100
    ]
    bench.nothing_is_left()


def test_tokens_that_were_on_their_way_count() -> None:
    bench = crowded()
    until_preempted(bench)
    released = len(bench.plans)
    victim = next(row for row in bench.worker.rows.values() if row.sequence_id == 200)
    num_before = bench.scheduler.counters["generated_tokens"]
    while not any(message.sequence_id == 200 for message in bench.asked(ReleaseBlocks)):
        bench.step()
    assert bench.scheduler.counters["generated_tokens"] > num_before
    assert bench.scheduler.counters["stale_rows"] == 0
    assert released <= len(bench.plans)
    resumed: list[int] = []
    while not resumed:
        bench.step()
        resumed = [
            len(new.token_ids) // 4 for new in bench.plans[-1].new_sequences if new.slot >= 0
        ]
    assert resumed == [len(victim.token_ids)]


def test_blocks_go_back_only_when_the_release_is_answered() -> None:
    bench = crowded()
    until_preempted(bench)
    plan_id = bench.plans[-1].plan_id
    while True:
        outputs = bench.outputs()
        answered = any(output.plan_id >= plan_id for output in outputs)
        bench.send(*outputs)
        if answered:
            break
        assert not bench.asked(ReleaseBlocks)
    assert [message.sequence_id for message in bench.asked(ReleaseBlocks)] == [200]


def test_nobody_is_preempted_while_an_answer_of_the_kv_manager_is_on_its_way() -> None:
    bench = Bench(num_slots=2, num_blocks=16, block_size=4, max_repeat=1)
    bench.send(bench.request(100, 8, max_tokens=20), bench.request(200, 8, max_tokens=20))
    bench.kv_answers = False
    bench.run()  # until both stand still
    assert bench.scheduler.counters["preemptions"] == 0
    assert bench.scheduler.gauges["running"] == 2
    bench.kv_answers = True
    bench.turn()
    bench.run()
    assert bench.scheduler.counters["finished_length"] == 2
    bench.nothing_is_left()


def test_an_abort_of_a_preempted_sequence_ends_it() -> None:
    bench = crowded()
    until_preempted(bench)
    bench.abort(200)
    bench.run()
    assert bench.scheduler.counters["finished_abort"] == 1
    assert bench.scheduler.counters["finished_length"] == 1
    bench.nothing_is_left()


def test_who_came_last_stands_still_and_preempts_nobody() -> None:
    bench = Bench(num_slots=2, num_blocks=12, block_size=4, max_repeat=1)
    bench.send(
        bench.request(100, 24, max_tokens=9),  # needs eight blocks and no more
        bench.request(200, 11, max_tokens=12),  # needs its fifth before the other one has ended
    )
    bench.step(9)
    assert [len(row.token_ids) for row in bench.worker.rows.values()] == [33, 17]
    bench.run()
    assert bench.scheduler.counters["preemptions"] == 0
    assert bench.scheduler.counters["finished_length"] == 2
    bench.nothing_is_left()


def test_candidates_that_pin_what_the_other_needs_do_not_block_each_other() -> None:
    bench = Bench(num_slots=1, num_blocks=16, block_size=4, max_repeat=4)
    first, second = list(range(17)), list(range(20, 37))
    for request_id, prompt in ((1, first), (2, second)):
        bench.submit(request_id, prompt, max_tokens=1)
        bench.run()
    bench.submit(3, 3, max_tokens=6)
    # Thirteen blocks each, four of them cached and pinned.
    bench.send(
        bench.request(4, 3 * first, max_tokens=4), bench.request(5, 3 * second, max_tokens=4)
    )
    assert bench.kv.num_used >= 8
    bench.run()
    assert bench.scheduler.counters["finished_length"] == 5
    bench.nothing_is_left()


def test_a_block_for_one_that_the_same_plan_preempts_is_not_announced() -> None:
    bench = Bench(num_slots=1, num_blocks=16, block_size=4, max_repeat=1)
    bench.submit(100, 8, max_tokens=40, priority=5)
    bench.kv_answers = False
    bench.submit(200, 8, max_tokens=4)
    bench.run()  # until the first one stands still
    bench.kv_answers = True
    bench.turn()  # a lease for the one and the prefix of the other at once
    plan = bench.plans[-2]
    assert unpack_ids(plan.released_slots) == [0]
    assert [new.sequence_id for new in plan.new_sequences] == [200]
    assert plan.append_slots == b""
    bench.run()
    assert bench.scheduler.counters["finished_length"] == 2
    bench.nothing_is_left()


def test_candidates_are_put_back_before_anyone_is_preempted() -> None:
    bench = Bench(num_slots=2, num_blocks=16, block_size=4, max_repeat=1)
    prompt = list(range(17))
    bench.submit(1, prompt, max_tokens=1)
    bench.run()
    bench.send(
        bench.request(2, 8, max_tokens=24),  # eight blocks each
        bench.request(3, 8, max_tokens=24),
        bench.request(4, prompt, max_tokens=1),  # pins four
    )
    assert bench.kv.num_used >= 4
    bench.run()
    assert bench.scheduler.counters["preemptions"] == 0
    assert bench.scheduler.counters["finished_length"] == 4
    bench.nothing_is_left()
