"""Candidates: how many, who is displaced, and what happens to their prefixes."""

import pytest
from scheduler_bench import Bench

from pillion.actors.scheduler.lookahead import MAX_CANDIDATES, SPARE_CANDIDATES
from pillion.messages.blocks import FindPrefix, PrefixFound, ReleaseBlocks
from pillion.messages.requests import RequestScheduled
from pillion.runtime.errors import InvariantBroken


def test_few_prefixes_are_looked_up_ahead_of_a_slot() -> None:
    bench = Bench(num_slots=1)
    for number in range(20):
        bench.submit(100 + number, 8, max_tokens=30)
    assert len(bench.asked(FindPrefix)) == 1 + SPARE_CANDIDATES
    bench.run()
    bench.nothing_is_left()


def test_and_never_very_many() -> None:
    bench = Bench(num_slots=500, budget=1000)
    bench.kv_answers = False
    bench.send(*(bench.request(100 + number, 8) for number in range(100)))
    assert len(bench.asked(FindPrefix)) == MAX_CANDIDATES
    bench.kv_answers = True
    bench.turn()
    bench.run()
    bench.nothing_is_left()


def test_a_better_priority_takes_the_place_of_a_candidate() -> None:
    bench = Bench(num_slots=1)
    for number in range(6):
        bench.submit(100 + number, 8, max_tokens=30)
    assert not bench.asked(ReleaseBlocks)
    bench.submit(200, 8, priority=-1)
    # The last candidate is put back; the new one takes the slot of who runs.
    assert [message.sequence_id for message in bench.asked(ReleaseBlocks)] == [104]
    assert bench.scheduler.counters["preemptions"] == 1
    bench.run()
    assert bench.scheduler.counters["finished_length"] == 7
    bench.nothing_is_left()


def test_an_answer_that_nobody_asked_for_is_a_broken_ring() -> None:
    bench = Bench()
    found = PrefixFound(
        epoch=1, sequence_id=7, block_ids=[b""], num_cached_tokens=0, miss_reason="cold"
    )
    with pytest.raises(InvariantBroken, match="sequence 7: nobody asked"):
        bench.send(found)


def test_candidates_unpin_their_prefixes_for_those_that_starve() -> None:
    bench = Bench(num_slots=1, num_blocks=13, block_size=4, max_repeat=4)
    prompt = list(range(17))
    bench.submit(1, prompt, max_tokens=2)
    bench.run()
    bench.submit(2, 10, max_tokens=40)
    bench.submit(3, prompt, max_tokens=2)  # pins four blocks of the thirteen
    assert bench.kv.num_used >= 4
    bench.run()
    assert bench.scheduler.counters["preemptions"] == 0
    assert bench.scheduler.counters["finished_length"] == 3
    assert 3 in {message.sequence_id for message in bench.asked(ReleaseBlocks)}
    bench.nothing_is_left()


@pytest.mark.parametrize(
    ("num_tokens", "options", "reason"),
    [(4, {}, "short"), (9, {"prompt_logprobs": 1}, "request"), (5, {}, None)],
)
def test_who_can_have_no_prefix_does_not_wait_for_an_answer(
    num_tokens: int, options: dict[str, int], reason: str | None
) -> None:
    bench = Bench(block_size=4)
    bench.kv_answers = False
    bench.submit(100, num_tokens, n=2, **options)
    (asked, *rest) = bench.asked(FindPrefix)
    assert asked.wants_answer == (reason is None)
    assert bool(bench.plans) == (reason is not None)
    # Its siblings share nothing of a prompt of one block, else they wait for the rest of it.
    assert len(rest) == (reason == "short")
    bench.kv_answers = True
    bench.turn()
    bench.run()
    scheduled = bench.told(RequestScheduled)
    assert scheduled[0].miss_reason == (reason or "cold")
    assert len(scheduled) == 2
    bench.nothing_is_left()
