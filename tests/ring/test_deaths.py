"""The ring while its actors die: at any moment, in any order, also while another one begins again.

The fake edge compares each token with what the model says alone, so a text that changes, repeats or loses a
token fails there; the fake worker reads the KV content of each row. Here is what must be left at the end.
"""

import random
from collections import Counter
from collections.abc import Callable

import pytest
from engine import Engine, EngineSizes, RandomLoad
from fake_worker import FakeRow, Fault
from memory_ring import Pace
from test_ring import PACES, SIZES

KILLED = ("scheduler", "kv_manager", "gpu_worker")


def run_with_deaths(
    seed: int,
    sizes: EngineSizes,
    pace: Pace,
    names: tuple[str, ...],
    num_kills: int,
    fails: Callable[[list[FakeRow]], Fault | None] = lambda rows: None,
) -> Engine:
    """A random load during which somebody dies every few messages; it ends with nothing left."""
    engine = Engine(seed, sizes, pace, fails=fails)
    load = RandomLoad(engine, seed, max_open=20)
    chance = engine.ring.chance
    while engine.num_kills < num_kills:
        load.run(engine.ring.num_messages + chance.choice((0, 1, 5, 50, 300)))
        engine.kill(chance.choice(names))
    engine.finish()
    return engine


@pytest.mark.parametrize("number", range(len(SIZES)))
@pytest.mark.parametrize("name", KILLED)
def test_one_actor_dies_again_and_again(name: str, number: int) -> None:
    engine = run_with_deaths(number, SIZES[number], PACES[number % 4], (name,), 15)
    outcomes = Counter(sample.outcome for sample in engine.edge.samples.values())
    assert outcomes["stop"] + outcomes["length"] > 0


@pytest.mark.parametrize("number", range(len(SIZES)))
@pytest.mark.parametrize("pace", range(len(PACES)))
def test_any_actors_die_together_and_while_others_begin_again(pace: int, number: int) -> None:
    engine = run_with_deaths(100 * pace + number, SIZES[number], PACES[pace], KILLED, 40)
    assert engine.num_kills == 40


def test_deaths_and_failing_steps_together() -> None:
    """Suspects are known beyond the deaths of others; a neighbour's text stays as it is."""
    chance = random.Random(5)

    def fails(rows: list[FakeRow]) -> Fault | None:
        if len(rows) < 2 or chance.random() > 0.01:
            return None
        return chance.choice(("step", "device", "crash"))

    engine = run_with_deaths(
        5, EngineSizes(max_num_seqs=8, num_blocks=60), PACES[0], KILLED, 30, fails
    )
    assert "error" not in {sample.outcome for sample in engine.edge.samples.values()}
