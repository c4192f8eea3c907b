"""The ring under random loads and a random schedule.

The fake edge and the fake worker judge every message (tokens, order, KV content); see there. Here is what
is asked of them.
"""

from collections import Counter

import pytest
from engine import Engine, EngineSizes, RandomLoad
from fake_edge import make_request, make_sampling
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from memory_ring import Pace

from pillion.actors.scheduler.scheduler import EDGE_FIRST_NS
from pillion.messages.control import Drain, PeerRestarted

MESSAGES = 12_500

PACES = (
    Pace(),
    # The worker is far ahead of everybody else, as with a tiny model.
    Pace(turn_us=(100, 2_000), worker_turn_us=(5, 20)),
    # Messages cross each other on long ways.
    Pace(link_us=(1, 30_000), worker_turn_us=(100, 1_000)),
    # Everybody is stopped now and then, for longer than a grant lasts.
    Pace(link_us=(1, 50), turn_us=(1, 50), worker_turn_us=(50, 100), pause_chance=0.05),
)

SIZES = (
    EngineSizes(),
    EngineSizes(max_num_seqs=2, num_blocks=25, max_repeat=1, steps_in_flight=1),
    EngineSizes(max_num_seqs=8, num_blocks=25, max_repeat=64, max_num_batched_tokens=9),
    EngineSizes(max_num_seqs=8, num_blocks=30, max_repeat=64, enable_prefix_caching=False),
    EngineSizes(max_num_seqs=3, num_blocks=12, block_size=8, vocab_size=3, steps_in_flight=3),
    EngineSizes(max_num_seqs=6, num_blocks=50, block_size=2, max_repeat=16, poison_every=100),
    EngineSizes(max_num_seqs=16, num_blocks=200, max_num_batched_tokens=200, max_repeat=64),
    EngineSizes(max_num_seqs=5, num_blocks=14, max_num_batched_tokens=5, max_repeat=4),
)


@pytest.mark.parametrize("number", range(len(SIZES)))
def test_every_request_ends_once_with_its_own_tokens_and_nothing_is_left(number: int) -> None:
    """10^5 messages over all sizes."""
    engine = Engine(seed=number, sizes=SIZES[number])
    load = RandomLoad(engine, seed=number, max_open=20)
    load.run(MESSAGES)
    engine.finish()
    outcomes = Counter(sample.outcome for sample in engine.edge.samples.values())
    assert sum(outcomes.values()) == len(engine.edge.samples) > 200
    # The load has reached what it is for.
    assert min(outcomes[reason] for reason in ("stop", "length", "abort", "timeout")) > 0
    assert engine.worker.shared
    assert engine.worker.counters["withheld_rows"] > 0
    assert engine.scheduler.counters["preemptions"] > 0
    assert (engine.worker.counters["repeats"] > 0) == (number != 1)
    assert (outcomes["error"] > 0) == (number == 5)
    assert outcomes["rejected"] > 0 or number != 7


# A seed of a schedule has no simpler form, so there is nothing to shrink.
@settings(max_examples=20, deadline=None, phases=(Phase.reuse, Phase.generate))
@given(
    seed=st.integers(0, 2**32),
    sizes=st.builds(
        EngineSizes,
        max_num_seqs=st.integers(1, 8),
        num_blocks=st.integers(6, 80),
        block_size=st.sampled_from((2, 4, 8)),
        max_num_batched_tokens=st.integers(1, 100),
        max_model_len=st.integers(20, 100),
        max_repeat=st.sampled_from((1, 2, 7, 64)),
        steps_in_flight=st.integers(1, 3),
        vocab_size=st.sampled_from((3, 60)),
        poison_every=st.sampled_from((0, 0, 50)),
        enable_prefix_caching=st.booleans(),
    ),
    pace=st.sampled_from(PACES),
    max_open=st.integers(1, 40),
)
def test_engines_of_any_size_and_pace_end_every_request(
    seed: int, sizes: EngineSizes, pace: Pace, max_open: int
) -> None:
    engine = Engine(seed, sizes, pace)
    RandomLoad(engine, seed, max_open).run(1_000)
    engine.finish()


def test_the_same_seed_gives_the_same_history() -> None:
    histories = []
    for _ in range(2):
        engine = Engine(seed=5)
        RandomLoad(engine, seed=5).run(2_000)
        engine.finish()
        histories.append((engine.ring.now_ns, engine.ring.num_messages, engine.edge.samples))
    assert histories[0] == histories[1]


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_the_samples_of_a_request_compute_their_prompt_once(enable_prefix_caching: bool) -> None:
    sizes = EngineSizes(max_num_seqs=8, enable_prefix_caching=enable_prefix_caching)
    engine = Engine(seed=1, sizes=sizes)
    prompt = list(range(41))
    engine.submit(make_request(1, prompt, make_sampling(5), 0, seeds=[3, 4, 5, 6]))
    engine.finish()
    samples = [engine.edge.samples[sequence_id] for sequence_id in range(1, 5)]
    assert [sample.num_cached_tokens for sample in samples] == [0, 40, 40, 40]
    assert engine.worker.shared == {(2, 1), (3, 1), (4, 1)}
    assert len({tuple(sample.token_ids) for sample in samples}) == 4


def test_ten_thousand_requests_at_once_against_two_slots() -> None:
    """The edge refuses what is beyond its bound; what it admits finishes, in bounded memory."""
    bound, num_arrivals = 2 + 1024, 10_000
    engine = Engine(seed=1, sizes=EngineSizes(max_num_seqs=2, max_repeat=64))
    num_refused = 0
    for request_id in range(1, num_arrivals + 1):
        if len(engine.edge.open_samples) >= bound:
            num_refused += 1
            continue
        prompt = [request_id % 50, request_id // 50, *range(6)]
        engine.submit(
            make_request(
                request_id, prompt, make_sampling(3), 0, seeds=[0], client_key=request_id % 7
            )
        )
    most_open = most_at_kv_manager = 0

    def watch(name: str) -> None:
        nonlocal most_open, most_at_kv_manager
        most_open = max(most_open, int(engine.scheduler.gauges.get("open", 0)))
        most_at_kv_manager = max(most_at_kv_manager, len(engine.kv_manager.sequences))

    engine.ring.after_turn = watch
    engine.finish()
    assert num_refused == num_arrivals - bound
    assert most_open == bound
    assert most_at_kv_manager <= 40
    assert Counter(sample.outcome for sample in engine.edge.samples.values()) == {"length": bound}


def test_a_drained_engine_ends_what_it_has() -> None:
    engine = Engine(seed=2)
    RandomLoad(engine, seed=2).run(1_000)
    deadline_ns = engine.ring.now_ns + 5_000_000
    engine.tell("scheduler", Drain(deadline_ns=deadline_ns - EDGE_FIRST_NS))
    engine.finish()
    assert engine.ring.now_ns < deadline_ns + 100_000_000
    assert any(sample.outcome == "error" for sample in engine.edge.samples.values())


def test_nothing_moves_in_an_idle_ring() -> None:
    engine = Engine(seed=6)
    engine.submit(make_request(1, [1, 2, 3], make_sampling(4), 0, seeds=[1]))
    engine.finish()
    num_turns = engine.ring.num_turns
    assert not engine.ring.step()
    engine.tell("scheduler", PeerRestarted(actor="detokenizer", epoch=2))
    engine.ring.settle(10)
    assert engine.ring.num_turns == num_turns + 1
