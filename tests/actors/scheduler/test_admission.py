"""Who gets in: order, fair share, priorities, those that do not fit."""

from scheduler_bench import Bench

from pillion.actors.scheduler.admission import MAX_PASSED
from pillion.messages.requests import RequestScheduled


def order(bench: Bench) -> list[int]:
    """Sequence ids in the order in which they got their slots."""
    return [message.sequence_id for message in bench.told(RequestScheduled)]


def test_clients_take_turns_whatever_one_of_them_has_queued() -> None:
    bench = Bench(num_slots=1)
    requests = [bench.request(100 + i, 8, max_tokens=4, client_key=1) for i in range(8)]
    requests += [bench.request(200 + i, 8, max_tokens=4, client_key=2) for i in range(3)]
    bench.send(*requests)
    bench.run()
    # The first five are looked up at once, before anybody has been served.
    assert [sequence_id // 100 for sequence_id in order(bench)][:6] == [1, 2, 1, 2, 1, 2]
    bench.nothing_is_left()


def test_a_lower_priority_number_goes_first() -> None:
    bench = Bench(num_slots=1)
    bench.send(*(bench.request(100 + i, 8, priority=5) for i in range(8)))
    bench.submit(300, 8, priority=5)
    bench.submit(200, 8, priority=5)
    bench.submit(900, 8, priority=0)
    bench.run()
    assert order(bench)[1] == 900
    bench.nothing_is_left()


def test_a_better_priority_takes_the_slot_of_the_latest_of_the_worst() -> None:
    bench = Bench(num_slots=2)
    bench.send(bench.request(100, 8, priority=5, max_tokens=40))
    bench.send(bench.request(200, 8, priority=5, max_tokens=40))
    bench.step()
    bench.submit(300, 8, priority=1, max_tokens=2)
    assert bench.scheduler.counters["preemptions"] == 1
    assert bench.plans[-1].new_sequences[0].sequence_id == 300
    assert bench.plans[-1].new_sequences[0].slot == 1
    bench.run()
    assert bench.scheduler.counters["preemptions"] == 1
    assert bench.scheduler.counters["finished_length"] == 3
    bench.nothing_is_left()


def big_among_small(num_small: int) -> Bench:
    """One runs; a big one that does not fit beside it, and small ones behind."""
    bench = Bench(num_slots=3, num_blocks=40, block_size=4, max_repeat=4)
    bench.submit(1, 40, max_tokens=100)
    bench.step(2)
    bench.submit(2, 130, max_tokens=4)
    for number in range(num_small):
        bench.submit(10 + number, 3, max_tokens=2)
    return bench


def test_small_ones_pass_one_that_does_not_fit() -> None:
    bench = big_among_small(4)
    bench.step(8)
    assert order(bench)[:5] == [1, 10, 11, 12, 13]
    bench.run()
    assert bench.scheduler.counters["finished_length"] == 6
    assert bench.scheduler.counters["preemptions"] == 0
    bench.nothing_is_left()


def test_but_only_so_many() -> None:
    bench = big_among_small(3 * MAX_PASSED)
    bench.run()
    assert order(bench).index(2) - 1 == MAX_PASSED
    assert bench.scheduler.counters["finished_length"] == 2 + 3 * MAX_PASSED
    bench.nothing_is_left()


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    bench = Bench(budget=16, max_model_len=200)
    bench.submit(100, 150, max_tokens=2)
    bench.step()
    bench.submit(200, 3, max_tokens=2, client_key=1)
    bench.step(4)
    assert order(bench) == [100, 200]
    assert bench.scheduler.counters["generated_tokens"] == 2
    assert bench.scheduler.counters["finished_length"] == 1
    bench.nothing_is_left()


def test_a_worse_priority_does_not_pass_one_that_does_not_fit() -> None:
    bench = Bench(num_slots=3, num_blocks=40, block_size=4, max_repeat=4)
    bench.submit(1, 40, max_tokens=100)
    bench.step(2)
    bench.submit(2, 130, max_tokens=4)
    bench.submit(3, 3, max_tokens=2, priority=1)
    bench.step(8)
    assert order(bench) == [1]
    bench.run()
    assert order(bench) == [1, 2, 3]
    bench.nothing_is_left()


def test_a_new_sequence_leaves_a_block_to_each_that_runs() -> None:
    bench = Bench(num_blocks=16, block_size=4, max_repeat=1)
    bench.submit(1, 20, max_tokens=4)  # six blocks to its end
    bench.submit(2, 40, max_tokens=1)  # ten blocks
    bench.step(3)
    assert bench.scheduler.gauges["leased_blocks"] >= 10
    assert order(bench) == [1]
    bench.run()
    assert order(bench) == [1, 2]
    bench.nothing_is_left()
