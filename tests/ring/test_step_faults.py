"""Steps that fail, under random loads and a random schedule: whoever causes it fails alone.

The fake worker spoils the cells that a failed step wrote, and refuses to read a spoiled one.
"""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest
from engine import Engine, EngineSizes, RandomLoad
from fake_edge import make_request, make_sampling
from fake_worker import FakeRow, Fault
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from memory_ring import Pace

PACES = (
    Pace(),
    Pace(turn_us=(100, 2_000), worker_turn_us=(5, 20)),
    Pace(link_us=(1, 30_000), worker_turn_us=(100, 1_000)),
)


class Faults:
    """Which steps fail: some by chance, if two rows share them, and all with a culprit that is far enough."""

    def __init__(self, seed: int, chance: float, one_in: int, fault: Fault = "step") -> None:
        self.num_by_chance = 0
        self.culprits: set[int] = set()  # that made a step fail
        self._random = random.Random(seed)
        self._chance = chance
        self._one_in = one_in
        self.fault = fault

    def __call__(self, rows: list[FakeRow]) -> Fault | None:
        found = {row.sequence_id for row in rows if self._is_culprit(row)}
        self.culprits |= found
        by_chance = len(rows) > 1 and self._random.random() < self._chance
        self.num_by_chance += by_chance
        return self.fault if by_chance or found else None

    def _is_culprit(self, row: FakeRow) -> bool:
        """One sequence of so many is, from some position on."""
        if not self._one_in:
            return False
        draw = random.Random(row.sequence_id)
        return draw.randrange(self._one_in) == 0 and row.num_computed > draw.randrange(60)


def check(engine: Engine, faults: Faults) -> Counter[str | None]:
    """Nobody fails but culprits, and culprits that were not given up before do."""
    samples = engine.edge.samples
    failed = {i for i, sample in samples.items() if sample.outcome == "error"}
    if faults.fault == "step":
        assert failed <= faults.culprits
    else:
        # Whoever ends a worker each time takes the other samples of its request along.
        guilty = {samples[i].request_id for i in faults.culprits}
        assert {samples[i].request_id for i in failed} <= guilty
    spared = {samples[i].outcome for i in faults.culprits - failed}
    assert spared <= {"abort", "timeout"}
    return Counter(sample.outcome for sample in samples.values())


@pytest.mark.parametrize("seed", range(3))
def test_culprits_fail_and_nobody_else(seed: int) -> None:
    """The edge compares every token with what the model says alone."""
    faults = Faults(seed, chance=0.02, one_in=20)
    sizes = EngineSizes(max_num_seqs=8, num_blocks=60, max_repeat=(1, 8, 64)[seed])
    engine = Engine(seed, sizes, PACES[seed], fails=faults)
    RandomLoad(engine, seed, max_open=20).run(6_000)
    engine.finish()
    outcomes = check(engine, faults)
    assert outcomes["error"] > 1
    assert faults.num_by_chance > 3
    assert outcomes["stop"] + outcomes["length"] > 100
    assert engine.scheduler.counters["failed_steps"] == engine.worker.counters["failed_steps"]


@pytest.mark.parametrize("seed", range(3))
def test_culprits_that_break_the_device_fail_and_nobody_else(seed: int) -> None:
    """Each fault ends the worker with its memory; who is suspected is known to the scheduler all the same."""
    faults = Faults(seed, chance=0.01, one_in=12, fault="device")
    engine = Engine(seed, EngineSizes(max_num_seqs=8, num_blocks=60), PACES[seed], fails=faults)
    RandomLoad(engine, seed, max_open=20).run(4_000)
    engine.finish()
    outcomes = check(engine, faults)
    assert outcomes["error"] > 0
    assert engine.num_lost_devices == engine.scheduler.counters["failed_steps"] > 5


@pytest.mark.parametrize("seed", range(3))
def test_culprits_that_crash_the_worker_fail_and_nobody_else(seed: int) -> None:
    """Nobody hears of the step itself, and words said before may be lost: all that was in flight is suspect."""
    faults = Faults(seed, chance=0.01, one_in=12, fault="crash")
    engine = Engine(seed, EngineSizes(max_num_seqs=8, num_blocks=60), PACES[seed], fails=faults)
    RandomLoad(engine, seed, max_open=20).run(4_000)
    engine.finish()
    outcomes = check(engine, faults)
    assert outcomes["error"] > 0
    assert outcomes["stop"] + outcomes["length"] > 50
    assert engine.num_crashes > 5


# A seed of a schedule has no simpler form, so there is nothing to shrink.
@settings(max_examples=20, deadline=None, phases=(Phase.reuse, Phase.generate))
@given(
    seed=st.integers(0, 2**32),
    sizes=st.builds(
        EngineSizes,
        max_num_seqs=st.integers(1, 12),
        num_blocks=st.integers(6, 80),
        block_size=st.sampled_from((2, 4, 8)),
        max_num_batched_tokens=st.integers(1, 100),
        max_model_len=st.integers(20, 100),
        max_repeat=st.sampled_from((1, 7, 64)),
        steps_in_flight=st.integers(1, 3),
        poison_every=st.sampled_from((0, 0, 50)),
        enable_prefix_caching=st.booleans(),
    ),
    pace=st.sampled_from(PACES),
    chance=st.sampled_from((0.0, 0.05, 0.5)),
    one_in=st.sampled_from((0, 3, 20)),
    fault=st.sampled_from(("step", "device", "crash")),
)
def test_every_request_ends_whatever_fails(
    seed: int, sizes: EngineSizes, pace: Pace, chance: float, one_in: int, fault: Fault
) -> None:
    faults = Faults(seed, chance, one_in, fault)
    engine = Engine(seed, sizes, pace, fails=faults)
    RandomLoad(engine, seed, max_open=20).run(700)
    engine.finish()
    if not sizes.poison_every:
        check(engine, faults)


def test_one_fault_costs_no_request_and_little_work() -> None:
    num_steps = []
    for first_faults in (0, 1):
        fails: Iterator[Fault | None] = iter([*[None] * 12, *["step"] * first_faults])
        sizes = EngineSizes(max_num_seqs=8, num_blocks=300)
        engine = Engine(3, sizes, fails=lambda rows, fails=fails: next(fails, None))  # type: ignore[misc]
        for number in range(6):
            prompt = [number, *range(30)]
            engine.submit(make_request(1 + number, prompt, make_sampling(40), 0, seeds=[number]))
        engine.finish()
        assert {sample.outcome for sample in engine.edge.samples.values()} == {"length"}
        assert engine.worker.counters["failed_steps"] == first_faults
        num_steps.append(engine.worker.counters["steps"])
    # Two groups are tried, then all go on; what was committed before the fault is found again.
    assert num_steps[0] < num_steps[1] < num_steps[0] + 15


def test_the_culprit_is_found_in_halves() -> None:
    culprit = 6
    faults: list[int] = []

    def fails(rows: list[FakeRow]) -> Fault | None:
        found = any(row.sequence_id == culprit and row.num_computed > 40 for row in rows)
        if found:
            faults.append(len(rows))
        return "step" if found else None

    engine = Engine(1, EngineSizes(max_num_seqs=16, num_blocks=300), fails=fails)
    for number in range(16):
        prompt = [number, *range(19)]
        engine.submit(make_request(1 + number, prompt, make_sampling(40), 0, seeds=[number]))
    engine.finish()
    outcomes = {i: sample.outcome for i, sample in engine.edge.samples.items()}
    assert outcomes.pop(culprit) == "error"
    assert set(outcomes.values()) == {"length"}
    assert (faults[0], faults[-1]) == (16, 1)
    assert all(more >= 2 * less for more, less in pairwise(faults))
