"""The life of a request: every way in, every way out, and what is left behind."""

import re
from collections.abc import Callable

import pytest
from fake_kv_manager import FakeKvManager
from fake_worker import FakeWorker
from msgspec.structs import replace
from scheduler_bench import Bench

from pillion.actors.scheduler.planner import IDLE_RELEASE_NS
from pillion.actors.scheduler.scheduler import EDGE_FIRST_NS
from pillion.messages.blocks import (
    BlockLease,
    CommitBlocks,
    FindPrefix,
    HeldBlocks,
    LeaseRequest,
    PrefixFound,
    ReleaseBlocks,
)
from pillion.messages.codec import pack_ids, unpack_ids
from pillion.messages.control import Drain, PeerRestarted, Shutdown
from pillion.messages.requests import (
    AbortRequest,
    RequestClosed,
    RequestRejected,
    RequestScheduled,
)
from pillion.runtime.errors import InvariantBroken

MS = 1_000_000


def test_a_request_that_can_never_fit_is_refused_with_the_sum() -> None:
    bench = Bench(num_blocks=16, block_size=4, max_model_len=1000)
    bench.submit(100, 40, max_tokens=25)
    bench.submit(200, 64, max_tokens=1)
    bench.submit(300, 999, max_tokens=5)
    bench.submit(400, 1000, max_tokens=5)
    messages = [(m.request_id, m.code, m.message) for m in bench.told(RequestRejected)]
    assert messages == [
        (
            100,
            "invalid_request",
            "40 prompt tokens + 25 of max_tokens = 65 tokens and the KV cache holds 64 tokens"
            " (16 blocks of 4): lower max_tokens to 24 or shorten the prompt",
        ),
        (
            200,
            "invalid_request",
            "the prompt has 64 tokens and the KV cache holds 64 tokens (16 blocks of 4):"
            " shorten the prompt",
        ),
        (
            300,
            "invalid_request",
            "the prompt has 999 tokens and the KV cache holds 64 tokens (16 blocks of 4):"
            " shorten the prompt",
        ),
        (
            400,
            "invalid_request",
            "the prompt has 1000 tokens, the model takes 1000 for prompt and answer together:"
            " shorten the prompt",
        ),
    ]
    bench.submit(500, 40, max_tokens=24)
    bench.run()
    assert bench.scheduler.counters["finished_length"] == 1
    assert bench.scheduler.counters["rejected"] == 4
    bench.nothing_is_left()


def test_before_the_engine_is_there_requests_wait_and_then_run_or_are_refused() -> None:
    bench = Bench(num_blocks=16, block_size=4, with_engine=False)
    bench.submit(100, 8, max_tokens=4)
    bench.submit(200, 8, max_tokens=4, deadline_ns=5 * MS)
    bench.submit(300, 8, max_tokens=100, n=3)
    assert (bench.to_edge, bench.plans, bench.to_kv) == ([], [], [])
    assert bench.turn() == 5 * MS
    bench.now_ns = 5 * MS
    assert bench.turn() is None
    (closed,) = bench.to_edge
    assert isinstance(closed, RequestClosed)
    assert (closed.sequence_id, closed.finish_reason) == (200, "timeout")
    bench.start_engine()
    assert [m.request_id for m in bench.told(RequestRejected)] == [300]
    bench.run()
    assert bench.scheduler.counters["received"] == 5
    assert bench.scheduler.counters["rejected"] == 3
    assert bench.scheduler.counters["finished_length"] == 1
    bench.nothing_is_left()


def waiting_in_the_queue(bench: Bench) -> int:
    for number in range(12):
        bench.submit(100 + number, 8, max_tokens=20)
    assert 111 not in {message.sequence_id for message in bench.asked(FindPrefix)}
    return 111


def looking_up_its_prefix(bench: Bench) -> int:
    bench.kv_answers = False
    bench.submit(100, 8)
    assert len(bench.asked(FindPrefix)) == 1
    return 100


def ready_without_a_slot(bench: Bench) -> int:
    for number in range(6):
        bench.submit(100 + number, 8, max_tokens=20)
    assert len(bench.asked(FindPrefix)) == 6
    return 105


def in_the_first_chunk(bench: Bench) -> int:
    bench.submit(100, 100)
    return 100


def between_chunks(bench: Bench) -> int:
    bench.submit(100, 100)
    bench.step(2)
    return 100


def decoding(bench: Bench) -> int:
    bench.submit(100, 8, max_tokens=100)
    bench.step(3)
    return 100


def held_for_its_sibling(bench: Bench) -> int:
    bench.submit(100, 40, n=3)
    return 102


def leading_its_siblings(bench: Bench) -> int:
    bench.submit(100, 40, n=3)
    return 100


def finished_and_not_released(bench: Bench) -> int:
    bench.submit(100, 8, max_tokens=1)
    bench.step()
    assert bench.scheduler.counters["finished_length"] == 1
    return 100


def never_heard_of(bench: Bench) -> int:
    return 12345


@pytest.mark.parametrize("how", ["abort", "timeout", "drain"])
@pytest.mark.parametrize(
    "state",
    [
        waiting_in_the_queue,
        looking_up_its_prefix,
        ready_without_a_slot,
        in_the_first_chunk,
        between_chunks,
        decoding,
        held_for_its_sibling,
        leading_its_siblings,
        finished_and_not_released,
        never_heard_of,
    ],
)
def test_a_sequence_can_end_in_every_state(state: Callable[[Bench], int], how: str) -> None:
    bench = Bench()
    original = bench.request
    if how == "timeout":
        bench.request = lambda *a, **k: original(*a, deadline_ns=7 * MS, **k)  # type: ignore[method-assign]
    sequence_id = state(bench)
    num_open = bench.scheduler.gauges["open"]
    if how == "abort":
        bench.abort(sequence_id)
        bench.abort(sequence_id)
    elif how == "drain":
        bench.send(Drain(deadline_ns=bench.now_ns - EDGE_FIRST_NS))
    else:
        bench.now_ns = 7 * MS
        bench.turn()
    if how == "abort":
        assert not bench.told(RequestClosed)
        is_open = state not in (finished_and_not_released, never_heard_of)
        assert bench.scheduler.gauges["open"] == num_open - is_open
    else:
        closed = bench.told(RequestClosed)
        assert len(closed) == num_open == len({message.sequence_id for message in closed})
        assert {message.finish_reason for message in closed} <= {"timeout", "error"}
    bench.kv_answers = True
    bench.turn()
    bench.run()
    bench.nothing_is_left()


def test_a_stop_string_is_an_abort_that_counts_as_a_stop() -> None:
    bench = Bench()
    bench.submit(100, 8, max_tokens=50)
    bench.step(2)
    bench.abort(100, reason="stop")
    bench.run()
    assert bench.scheduler.counters["finished_stop"] == 1
    assert bench.scheduler.counters["finished_abort"] == 0
    bench.nothing_is_left()


def test_rows_of_an_aborted_sequence_are_stale_and_its_blocks_wait_for_them() -> None:
    bench = Bench(max_repeat=64)
    bench.submit(100, 8, max_tokens=50)
    bench.step(2)
    in_flight = bench.outputs() + bench.outputs()
    bench.abort(100)
    assert unpack_ids(bench.plans[-1].released_slots) == [0]
    bench.send(*in_flight)
    assert bench.scheduler.counters["stale_rows"] == len(in_flight) > 0
    assert not bench.asked(ReleaseBlocks)
    bench.run()
    assert len(bench.asked(ReleaseBlocks)) == 1
    bench.nothing_is_left()


def test_samples_wait_for_the_first_ones_prompt_and_share_its_blocks() -> None:
    bench = Bench(budget=16, num_slots=4)
    bench.submit(100, 26, n=3, prompt_logprobs=2)
    bench.step()
    assert [message.sequence_id for message in bench.asked(FindPrefix)] == [100]
    bench.step()
    assert [m.sequence_id for m in bench.asked(FindPrefix)] == [100, 101, 102]
    assert [m.use_cache for m in bench.asked(FindPrefix)] == [False, True, True]
    samples = [new for plan in bench.plans for new in plan.new_sequences]
    assert [new.num_computed_tokens for new in samples] == [0, 24, 24]
    assert [new.sampling.prompt_logprobs for new in samples] == [2, None, None]
    assert [new.sampling.seed for new in samples] == [0, 1, 2]
    bench.run()
    assert [m.num_cached_tokens for m in bench.told(RequestScheduled)] == [0, 24, 24]
    bench.nothing_is_left()


def test_without_a_prefix_cache_samples_share_with_each_other_only() -> None:
    bench = Bench(caching=False)
    prompt = list(range(17))
    bench.submit(100, prompt, n=2)
    bench.run()
    bench.submit(200, prompt, n=2)
    bench.run()
    assert [m.num_cached_tokens for m in bench.told(RequestScheduled)] == [0, 16, 0, 16]
    bench.nothing_is_left()


def test_when_the_leading_sample_is_gone_the_next_one_leads() -> None:
    bench = Bench(budget=8)
    bench.submit(100, 40, n=3)
    bench.step()
    bench.abort(100)
    bench.step(3)
    assert [m.sequence_id for m in bench.asked(FindPrefix)] == [100, 101]
    bench.run()
    assert bench.scheduler.counters["finished_length"] == 2
    bench.nothing_is_left()


def test_a_request_comes_back_with_what_it_had_produced() -> None:
    bench = Bench()
    request = bench.request(100, 8, max_tokens=10, n=3, prompt_logprobs=1)
    prompt = unpack_ids(request.prompt_token_ids)
    alone = [
        bench.model.alone(prompt, replace(request.sampling, seed=seed))[0] for seed in (0, 1, 2)
    ]
    produced = [alone[0][:4], alone[1], alone[2][:2]]
    bench.send(
        replace(request, produced_token_ids=[pack_ids(ids) for ids in produced], finished=[1])
    )
    bench.run()
    new = [new for plan in bench.plans for new in plan.new_sequences]
    assert [unpack_ids(n.token_ids) for n in new] == [prompt + alone[0][:4], prompt + alone[2][:2]]
    assert [n.sampling.prompt_logprobs for n in new] == [None, None]
    assert bench.scheduler.counters["generated_tokens"] == 6 + 8
    assert bench.scheduler.counters["received"] == 2
    bench.nothing_is_left()


def test_a_sample_that_comes_back_complete_ends_at_once() -> None:
    bench = Bench()
    request = bench.request(100, 8, max_tokens=3)
    bench.send(replace(request, produced_token_ids=[pack_ids([1, 2, 3])]))
    (closed,) = bench.told(RequestClosed)
    assert closed.finish_reason == "length"
    assert not bench.plans
    bench.nothing_is_left()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"n": 2}, "2 samples came with 1 seeds"),
        ({"n": 0, "seeds": []}, "0 samples came with 0 seeds"),
        ({"produced_token_ids": [b"", b""]}, "1 samples came with tokens of 2"),
        ({"prompt_token_ids": b"12345"}, "not packed int32"),
        ({"prompt_token_ids": b""}, "no tokens"),
        ({"finished": [1]}, r"samples \[1\] of 1"),
    ],
)
def test_a_request_that_makes_no_sense_hurts_nobody_else(
    fault: dict[str, object], says: str
) -> None:
    bench = Bench()
    bench.submit(100, 8, max_tokens=20)
    bench.send(replace(bench.request(200, 8), **fault))
    (rejected,) = bench.told(RequestRejected)
    assert (rejected.request_id, rejected.code) == (200, "internal")
    assert re.search(says, rejected.message)
    bench.run()
    assert bench.scheduler.counters["finished_length"] == 1
    bench.nothing_is_left()


def test_drain_lets_finish_what_the_edge_sends() -> None:
    bench = Bench(num_slots=1)
    bench.send(bench.request(100, 8, max_tokens=20), bench.request(200, 8, max_tokens=20))
    bench.send(Drain(deadline_ns=50 * MS))
    assert bench.turn() == 50 * MS + EDGE_FIRST_NS
    # The edge, which has refused what is new, may have to admit again what is open.
    bench.submit(300, 8, max_tokens=20)
    bench.run()
    assert bench.scheduler.counters["finished_length"] == 3
    assert bench.turn() is None
    bench.nothing_is_left()


def test_drain_ends_with_an_error_what_takes_too_long() -> None:
    bench = Bench(num_slots=1)
    bench.send(bench.request(100, 8, max_tokens=90), bench.request(200, 8, max_tokens=90))
    bench.send(Drain(deadline_ns=50 * MS))
    bench.step(3)
    bench.now_ns = 50 * MS
    bench.turn()
    assert not bench.told(RequestClosed), "the edge comes first"
    bench.now_ns += EDGE_FIRST_NS
    bench.turn()
    closed = bench.told(RequestClosed)
    assert [(m.sequence_id, m.finish_reason) for m in closed] == [(100, "error"), (200, "error")]
    bench.nothing_is_left()


def test_shutdown_ends_the_loop() -> None:
    bench = Bench()
    bench.send(Shutdown())
    assert bench.scheduler.finished


def test_messages_of_an_earlier_life_are_dropped() -> None:
    bench = Bench()
    bench.send(PeerRestarted(actor="detokenizer", epoch=3))
    bench.submit(100, 8)
    assert bench.scheduler.gauges["open"] == 0
    bench.send(replace(bench.request(200, 8), epoch=3))
    assert bench.scheduler.gauges["open"] == 1
    bench.send(AbortRequest(epoch=2, sequence_ids=[200], reason="abort"))
    assert bench.scheduler.gauges["open"] == 1
    bench.run()
    bench.nothing_is_left()


def lose_worker(bench: Bench) -> None:
    """The worker's end and the next one's beginning, before the edge has sent anything again."""
    restarted = PeerRestarted(actor="gpu_worker", epoch=2)
    bench.kv.on_message(restarted, 0)
    bench.worker = FakeWorker(
        bench.model, bench.num_slots, bench.num_blocks, bench.block_size, epoch=2
    )
    bench.plans.clear()
    bench.send(restarted)
    bench.start_engine(epoch=2)


def test_a_new_worker_gets_what_the_edge_sends_again_with_all_its_tokens() -> None:
    bench = Bench(num_slots=2, max_repeat=4)
    messages = [bench.request(request_id, 9, max_tokens=12) for request_id in (100, 200, 300)]
    bench.send(*messages)
    bench.step(5)
    known = list(bench.worker.rows[0].token_ids)
    late = bench.outputs() + bench.outputs()
    lose_worker(bench)
    bench.send(*late)
    assert (bench.plans, bench.scheduler.gauges["open"]) == ([], 0)
    # Sent before the edge had heard of it: comes again.
    bench.send(messages[1])
    assert bench.scheduler.gauges["open"] == 0
    produced = [pack_ids(known[9:12]), b"", b""]
    bench.send(
        *(
            replace(message, produced_token_ids=[ids], worker_epoch=2)
            for message, ids in zip(messages, produced, strict=True)
        )
    )
    (first,) = [n for n in bench.plans[0].new_sequences if n.sequence_id == 100]
    assert (first.num_computed_tokens, unpack_ids(first.token_ids)) == (0, known[:12])
    bench.run()
    counters = bench.scheduler.counters
    assert (counters["finished_length"], counters["forgotten"]) == (3, 3)
    bench.nothing_is_left()


def test_the_edge_may_be_the_first_to_know_of_a_new_worker() -> None:
    bench = Bench()
    bench.submit(100, 8)
    bench.send(replace(bench.request(100, 8), worker_epoch=2))
    bench.worker = FakeWorker(bench.model, 4, bench.num_blocks, bench.block_size, epoch=2)
    bench.kv.on_message(PeerRestarted(actor="gpu_worker", epoch=2), 0)
    bench.plans.clear()
    bench.start_engine()  # of the worker that is gone
    assert not bench.plans
    bench.start_engine(epoch=2)
    assert [new.sequence_id for new in bench.plans[0].new_sequences] == [100]
    bench.run()
    assert bench.scheduler.counters["finished_length"] == 1
    bench.nothing_is_left()


def test_an_answer_about_memory_that_is_gone_is_dropped() -> None:
    bench = Bench()
    bench.kv_answers = False
    bench.submit(100, 20)
    bench.scheduler.on_message(bench.kv.outgoing.pop(0)[1], 0)
    bench.submit(200, 100)  # its blocks are asked for
    stale = [message for _, message in bench.kv.outgoing]
    assert {type(message) for message in stale} >= {PrefixFound, BlockLease}
    bench.kv.outgoing.clear()
    bench.kv_answers = True
    lose_worker(bench)
    bench.send(*stale)
    assert bench.scheduler.gauges["leased_blocks"] == len(bench.kv.leased)
    bench.send(replace(bench.request(200, 100), worker_epoch=2))
    bench.run()
    assert bench.scheduler.counters["finished_length"] == 1
    bench.nothing_is_left()


def test_a_new_kv_manager_is_told_everything_and_nobody_stands_still() -> None:
    bench = Bench(num_slots=3, max_repeat=4)
    for request_id in (100, 200, 300):
        bench.submit(request_id, 21, max_tokens=30)
    bench.step(4)
    bench.abort(200)  # its slot is on its way back
    bench.kv_answers = False
    bench.submit(400, 9)
    assert bench.asked(FindPrefix)[-1].sequence_id == 400
    num_plans = len(bench.plans)
    bench.step(6)  # while nobody answers
    assert len(bench.plans) > num_plans
    bench.to_kv.clear()
    bench.kv = FakeKvManager(bench.num_blocks, bench.block_size, epoch=2)
    bench.kv_answers = True
    bench.send(PeerRestarted(actor="kv_manager", epoch=2))
    assert [type(message) for message in bench.to_kv[:2]] == [HeldBlocks, FindPrefix]
    bench.kv.verify()
    bench.run()
    counters = bench.scheduler.counters
    assert (counters["finished_length"], counters["finished_abort"]) == (3, 1)
    bench.nothing_is_left()


def test_with_a_new_edge_nobody_waits_for_what_the_old_one_asked() -> None:
    bench = Bench(num_slots=1)
    bench.submit(100, 8, max_tokens=30)
    bench.submit(200, 8, max_tokens=30)
    bench.step(2)
    bench.send(replace(bench.request(300, 8), epoch=2))
    bench.run()
    counters = bench.scheduler.counters
    assert (counters["finished_abort"], counters["finished_length"]) == (2, 1)
    bench.nothing_is_left()


def test_rows_of_an_earlier_schedulers_plans_are_dropped() -> None:
    bench = Bench()
    bench.submit(100, 8)
    (output,) = bench.outputs() or bench.outputs()
    bench.send(replace(output, plan_epoch=0))
    assert bench.scheduler.counters["steps"] == 0
    bench.send(output)
    assert bench.scheduler.counters["steps"] == 1
    bench.run()
    bench.nothing_is_left()


def test_the_same_sequence_twice_is_a_broken_ring() -> None:
    bench = Bench()
    bench.submit(100, 8, n=2)
    with pytest.raises(InvariantBroken, match="sequence 101 is admitted and is open"):
        bench.submit(101, 8)


def test_an_output_that_skips_a_step_is_a_broken_ring() -> None:
    bench = Bench()
    bench.submit(100, 8)
    outputs = bench.outputs() + bench.outputs() + bench.outputs()
    with pytest.raises(InvariantBroken, match="execution 1 of plan 1 was answered"):
        bench.send(outputs[1])


def test_blocks_are_committed_when_full_and_computed_and_not_before() -> None:
    bench = Bench(block_size=4, max_repeat=1, budget=6)
    bench.submit(100, 10, max_tokens=8)
    bench.step()
    assert [(m.start, len(m.token_ids) // 4) for m in bench.asked(CommitBlocks)] == [(0, 4)]
    bench.step()  # all 10 of the prompt, and token 11, whose KV is not there yet
    assert [(m.start, len(m.token_ids) // 4) for m in bench.asked(CommitBlocks)][1:] == [(4, 4)]
    bench.step(2)
    assert len(bench.asked(CommitBlocks)) == 3
    bench.run()
    assert [m.start for m in bench.asked(CommitBlocks)] == [0, 4, 8, 12]
    bench.nothing_is_left()


def test_nothing_is_left_of_many_requests() -> None:
    bench = Bench(num_slots=4, max_repeat=16)
    for number in range(400):
        deadline_ns = None if number % 3 else 10**15
        bench.submit(1000 + number, 5, client_key=number, deadline_ns=deadline_ns)
        if number % 4 == 0:
            bench.abort(1000 + number)
        bench.step()
    bench.run()
    bench.nothing_is_left()
    scheduler = bench.scheduler
    assert len(scheduler._book.fair_share) == 0
    assert len(scheduler._book.deadlines) < 150
    assert bench.rows() == []


def test_a_plan_that_only_releases_has_no_rows() -> None:
    bench = Bench()
    bench.submit(100, 5, max_tokens=60)
    bench.step()
    bench.abort(100)
    assert bench.rows() == []
    assert unpack_ids(bench.plans[-1].released_slots) == [0]
    bench.nothing_is_left()


def test_an_idle_engine_releases_a_slot_with_the_next_request_or_a_moment_later() -> None:
    bench = Bench()
    bench.submit(100, 5, max_tokens=1)
    bench.step()
    assert len(bench.plans) == 1
    bench.submit(101, 5, max_tokens=1)
    assert [unpack_ids(plan.released_slots) for plan in bench.plans] == [[], [0]]
    assert len(bench.rows()) == 1
    bench.step()
    assert len(bench.plans) == 2
    wake_ns = bench.turn()
    assert wake_ns == bench.now_ns + IDLE_RELEASE_NS
    bench.now_ns = wake_ns
    assert bench.turn() is None
    assert unpack_ids(bench.plans[-1].released_slots) == [0]
    bench.nothing_is_left()


def test_a_plan_is_on_its_way_before_the_next_one_is_thought_of() -> None:
    bench = Bench(steps_in_flight=2, budget=32, block_size=64)
    scheduler = bench.scheduler
    bench.turn()
    scheduler.on_message(bench.request(100, 60), 0)
    for _ in range(2):
        assert scheduler.tick(0) == 0
        plans = [message for name, message in scheduler.outgoing if name == "gpu_worker"]
        assert len(plans) == 1
        scheduler.outgoing.clear()
    assert scheduler.tick(0) != 0


def test_a_worker_that_always_wants_another_plan_does_not_starve_the_kv_manager() -> None:
    bench = Bench(num_slots=4, num_blocks=100, block_size=4, max_repeat=1)
    bench.send(*(bench.request(100 + number, 10, max_tokens=60) for number in range(4)))
    scheduler, receivers = bench.scheduler, []
    for _ in range(20):
        for message in bench.outputs():
            scheduler.on_message(message, 0)
        scheduler.tick(0)
        receivers.append({name for name, _ in scheduler.outgoing})
        for name, message in scheduler.outgoing:
            if name == "gpu_worker":
                bench.worker.on_message(message, 0)
        scheduler.outgoing.clear()
    assert sum("gpu_worker" in names for names in receivers) >= 18
    assert sum("kv_manager" in names for names in receivers) >= 6


def test_a_plan_is_on_its_way_before_anything_is_settled() -> None:
    bench = Bench(num_slots=12, num_blocks=400)
    scheduler = bench.scheduler
    bench.turn()
    for number in range(12):
        scheduler.on_message(bench.request(100 * (number + 1), 1, max_tokens=150), 0)
    assert scheduler.tick(0) == 0  # come again at once
    first = list(scheduler.outgoing)
    assert first[0][0] == "gpu_worker"
    assert not any(isinstance(message, LeaseRequest) for _, message in first)
    scheduler.outgoing.clear()
    scheduler.tick(0)
    assert [type(message) for _, message in scheduler.outgoing] == [LeaseRequest]
