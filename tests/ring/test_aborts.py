"""Clients that leave, whatever their request is doing: everything that it held is free again."""

from collections.abc import Callable

import pytest
from engine import Engine, EngineSizes
from fake_edge import make_request, make_sampling

from pillion.actors.scheduler.sequence import Phase, Sequence

LONG = 3  # the request that is given up
SIZES = EngineSizes(max_num_seqs=2, num_blocks=30, max_num_batched_tokens=8, max_repeat=4)


def in_phase(phase: Phase) -> Callable[[Sequence], bool]:
    return lambda sequence: sequence.phase is phase


def prefilling(chunk: int) -> Callable[[Sequence], bool]:
    return lambda s: s.is_prefilling and s.num_computed_tokens >= 8 * chunk


def decoding(sequence: Sequence) -> bool:
    return sequence.phase is Phase.RUNNING and sequence.has_produced


def preempted(sequence: Sequence) -> bool:
    waits = sequence.phase in (Phase.WAITING, Phase.MATCHING, Phase.READY)
    return waits and sequence.has_produced


STATES: dict[str, Callable[[Sequence], bool]] = {
    "queued": in_phase(Phase.WAITING),
    "asking for its prefix": in_phase(Phase.MATCHING),
    "between look-up and allocation": in_phase(Phase.READY),
    "prefilling chunk 0": prefilling(0),
    "prefilling chunk 1": prefilling(1),
    "prefilling chunk 2": prefilling(2),
    "decoding": decoding,
    "preempted, release not answered": in_phase(Phase.LEFT),
    "preempted": preempted,
}


@pytest.mark.parametrize("state", STATES)
def test_a_request_that_is_given_up_leaves_nothing(state: str) -> None:
    engine = Engine(seed=1, sizes=SIZES)
    # Two that run, then a long one, then some that take its place by their priority.
    for request_id in (1, 2):
        engine.submit(make_request(request_id, [request_id] * 9, make_sampling(30), 0, seeds=[1]))
    engine.submit(make_request(LONG, list(range(40)), make_sampling(50), 1, seeds=[1], priority=1))
    book = engine.scheduler._book

    def reached() -> bool:
        sequence = book.open.get(LONG)
        return sequence is not None and STATES[state](sequence)

    def rush() -> bool:
        sequence = book.open.get(LONG)
        return reached() or (sequence is not None and decoding(sequence))

    engine.ring.run(rush, 20_000)
    if not reached():
        for request_id in range(10, 14):
            prompt = [request_id] * 30
            engine.submit(make_request(request_id, prompt, make_sampling(20), 2, seeds=[1]))
        engine.ring.run(reached, 20_000)
    engine.abort([LONG])
    engine.finish()
    assert engine.edge.samples[LONG].outcome == "abort"
    free, leased, referenced, cached = engine.kv_manager.groups[0].pool.counts
    assert (free + leased + cached, referenced) == (SIZES.num_blocks, 0)
    assert leased == engine.num_free_leased


def test_a_thousand_that_leave_between_look_up_and_allocation_pin_nothing() -> None:
    engine = Engine(seed=2, sizes=SIZES)
    trunk = list(range(24))
    engine.submit(make_request(1, trunk, make_sampling(1), 0, seeds=[1]))
    engine.finish()
    book = engine.scheduler._book
    phases = (Phase.MATCHING, Phase.READY)
    seen = set()
    for request_id in range(10, 1010):
        engine.submit(make_request(request_id, [*trunk, 1], make_sampling(5), 0, seeds=[1]))
        wanted = phases[request_id % 2]

        def reached(request_id: int = request_id, wanted: Phase = wanted) -> bool:
            sequence = book.open.get(request_id)
            return sequence is not None and sequence.phase in (wanted, Phase.RUNNING)

        engine.ring.run(reached, 20_000)
        seen.add(book.open[request_id].phase)
        engine.abort([request_id])
    assert Phase.MATCHING in seen
    engine.finish()
    assert engine.kv_manager.groups[0].pool.counts[2] == 0
    assert not engine.kv_manager.sequences
