"""The bubble: what is refused, and the worker's time per step."""

import pytest

from pillion.messages.control import ActorStatus
from pillion.runtime.bench.bubble import bubble, cpu_ms_per_step
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import ConfigError


def worker(steps: int, stage_ns: int) -> ActorStatus:
    counters = {
        "steps": steps,
        "prepare_ns": stage_ns,
        "execute_ns": 2 * stage_ns,
        "output_ns": 3 * stage_ns,
    }
    return ActorStatus(
        name="gpu_worker",
        state="running",
        pid=1,
        epoch=1,
        rss_bytes=0,
        cpu_seconds=0.0,
        counters=counters,
        gauges={},
    )


def test_the_cpu_has_no_graphs_to_compare_with() -> None:
    with pytest.raises(ConfigError, match="the CPU has none: choose a CUDA device"):
        bubble(EngineConfig(model="m", device="cpu"), [1], 128, 512, 3)


def test_answers_too_short_for_steady_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 16 tokens"):
        bubble(EngineConfig(model="m", device="cuda"), [1], 128, 8, 3)


def test_the_workers_time_is_that_of_its_stages_per_step() -> None:
    assert cpu_ms_per_step(worker(10, 0), worker(30, 1_000_000)) == pytest.approx(6 / 20)


def test_without_steps_no_time_was_spent() -> None:
    assert cpu_ms_per_step(worker(10, 5), worker(10, 5)) == 0.0
