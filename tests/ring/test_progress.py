"""If anything waits, somebody gets on: requests that cannot run do not hold up those that can."""

import random

import pytest
from engine import Engine, EngineSizes
from fake_edge import make_request, make_sampling
from memory_ring import Pace

MS = 1_000_000


def test_a_request_that_can_never_fit_is_refused_and_holds_nobody_up() -> None:
    sizes = EngineSizes(
        num_blocks=64, block_size=16, max_model_len=8192, max_num_batched_tokens=256
    )
    engine = Engine(seed=1, sizes=sizes)
    engine.submit(make_request(1, list(range(40)) * 100, make_sampling(10), 0, seeds=[1]))
    for request_id in range(2, 12):
        engine.submit(make_request(request_id, [request_id, 1], make_sampling(10), 0, seeds=[1]))
    engine.finish()
    outcomes = [sample.outcome for sample in engine.edge.samples.values()]
    assert outcomes == ["rejected"] + ["length"] * 10


@pytest.mark.parametrize("with_deaths", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_somebody_gets_a_token_as_long_as_anybody_waits(seed: int, with_deaths: bool) -> None:
    """Memory for three requests, two priorities, arrivals at any time; the limit is in the ring's own time."""
    stall_limit_ns = (1_500 if with_deaths else 300) * MS
    sizes = EngineSizes(max_num_seqs=8, num_blocks=36, max_num_batched_tokens=16)
    engine = Engine(seed, sizes, Pace(pause_chance=0.001))
    chance = random.Random(seed)
    last_ns = [engine.ring.now_ns]
    num_tokens = [0]

    def watch(name: str) -> None:
        if not engine.edge.open_samples or engine.edge.num_tokens > num_tokens[0]:
            num_tokens[0], last_ns[0] = engine.edge.num_tokens, engine.ring.now_ns
        assert engine.ring.now_ns - last_ns[0] < stall_limit_ns, sorted(engine.edge.open_samples)

    engine.ring.after_turn = watch
    for request_id in range(1, 150):
        prompt = [chance.randrange(50) for _ in range(chance.randrange(1, 40))]
        sampling = make_sampling(chance.randrange(1, 40))
        priority = chance.choice((0, 1))
        now_ns = engine.ring.now_ns
        engine.submit(make_request(request_id, prompt, sampling, now_ns, [1], priority=priority))
        if with_deaths and request_id % 10 == 0:
            engine.kill(chance.choice(("scheduler", "kv_manager", "gpu_worker")))
        for _ in range(chance.choice((5, 50, 150))):
            engine.ring.step()
    engine.finish()
    assert engine.scheduler.counters["preemptions"] > 0 or with_deaths
    assert {sample.outcome for sample in engine.edge.samples.values()} == {"length"}
