"""What benchmarks measure: the environment of their daemons, and the time per step."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pillion.runtime.bench import engine
from pillion.runtime.bench.engine import (
    KERNEL_CACHE,
    Timing,
    kernel_cache,
    private_daemon,
    seconds_per_step,
)
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import PillionError


def timing(*arrivals: float) -> Timing:
    return Timing(arrivals[0], arrivals[-1], len(arrivals), 0.0, list(arrivals))


def test_steps_are_counted_from_the_last_first_token_to_the_first_end() -> None:
    run = [timing(1.0, 2.0, 3.0, 4.0, 5.0), timing(2.0, 3.0, 4.0, 5.0, 9.0)]
    assert seconds_per_step(run) == pytest.approx(1.0)


def test_tokens_that_come_together_are_steps_too() -> None:
    assert seconds_per_step([timing(1.0, 2.0, 2.0, 3.0, 3.0)]) == pytest.approx(0.5)


@pytest.mark.parametrize("before", [None, "/somewhere"])
def test_an_empty_cache_of_kernels_is_there_for_one_start_only(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before is None:
        monkeypatch.delenv(KERNEL_CACHE, raising=False)
    else:
        monkeypatch.setenv(KERNEL_CACHE, before)
    with kernel_cache(empty=False):
        assert os.environ.get(KERNEL_CACHE) == before
    with kernel_cache(empty=True):
        folder = Path(os.environ[KERNEL_CACHE])
        assert list(folder.iterdir()) == []
    assert os.environ.get(KERNEL_CACHE) == before
    assert not folder.exists()


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a worker says, one (counters, gauges) for each question; the last one again and again."""
    reports: list[Any] = []

    def status(_: Any) -> Any:
        counters, gauges = reports.pop(0) if len(reports) > 1 else reports[0]
        worker = SimpleNamespace(name="gpu_worker", counters=counters, gauges=gauges)
        return SimpleNamespace(actors=[SimpleNamespace(name="launcher"), worker])

    daemon = SimpleNamespace(wait_ready=lambda _: None, stop=lambda: None)
    monkeypatch.setattr(engine, "status_of", status)
    monkeypatch.setattr(engine, "locate_model", lambda config, progress: config)
    monkeypatch.setattr(engine, "start_daemon", lambda config, private: daemon)
    monkeypatch.setattr(engine, "GRAPHS_TIMEOUT_S", 0.3)
    return reports


def test_what_is_measured_has_all_its_graphs(reports: list[Any]) -> None:
    reports += [({}, {}), ({"steps": 0}, {"graphs_left": 5}), ({"steps": 0}, {"graphs_left": 0})]
    with private_daemon(EngineConfig(model="m"), captured=False):
        assert len(reports) == 3
    with private_daemon(EngineConfig(model="m")):
        assert len(reports) == 1
    reports[:] = [({"steps": 0}, {})]  # a CPU has none
    with private_daemon(EngineConfig(model="m")):
        pass


def test_a_worker_that_captures_no_more_is_no_daemon_to_measure(reports: list[Any]) -> None:
    reports.append(({"steps": 0}, {"graphs_left": 5}))
    with (
        pytest.raises(PillionError, match="not captured all"),
        private_daemon(EngineConfig(model="m")),
    ):
        raise AssertionError("it is measured")
