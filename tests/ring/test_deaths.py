"""The ring while its actors die: at any moment, in any order, also while another one begins again.

The fake edge compares each token with what the model says alone, so a text that changes, repeats or loses a
token fails there; the fake worker reads the KV content of each row. Here is what must be left at the end.
"""

from collections import Counter

import pytest
from engine import Engine, EngineSizes, RandomLoad
from memory_ring import Pace
from test_ring import PACES, SIZES

KILLED = ("scheduler", "kv_manager", "gpu_worker")


def run_with_deaths(
    seed: int, sizes: EngineSizes, pace: Pace, names: tuple[str, ...], num_kills: int
) -> Engine:
    """A random load during which somebody dies every few messages; it ends with nothing left."""
    engine = Engine(seed, sizes, pace)
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
