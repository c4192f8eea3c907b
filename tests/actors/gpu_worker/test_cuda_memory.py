"""What is counted as in use, and by when; without a device, which others stand in for."""

import logging
import re
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_worker import tiny_config

from pillion.actors.gpu_worker import cuda_memory as module
from pillion.actors.gpu_worker import start_up
from pillion.actors.gpu_worker.blueprint import Blueprint
from pillion.actors.gpu_worker.cuda_memory import GraphMeter, measured_limits
from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.models.loader import load_model
from pillion.runtime.errors import ConfigError

MIB = 1 << 20
TOTAL, HELD, LOADED_BY_A_STEP = 1000 * MIB, 100 * MIB, 30 * MIB
STEP, KEPT = 40 * MIB, 5 * MIB  # at its peak, besides the pool; of that behind it


class FakeMemory:
    """Of a device that has no memory: it says what the tests want."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = HELD
        self.peak = 0
        self.num_emptied = 0
        self.tables: list[weakref.ref[Any]] = []  # of the largest step
        cuda = SimpleNamespace(
            mem_get_info=lambda _: (TOTAL - self.held, TOTAL),
            memory_allocated=lambda _: self.allocated(),
            max_memory_allocated=lambda _: self.peak,
            reset_peak_memory_stats=lambda _: None,
            synchronize=lambda _: None,
            empty_cache=self.empty,
        )
        monkeypatch.setattr(module, "torch", SimpleNamespace(cuda=cuda))

    def allocated(self) -> int:
        """What a step has left behind; asked for when its tables are gone."""
        assert self.tables
        assert not any(table() is not None for table in self.tables)
        return HELD + KEPT

    def empty(self) -> None:
        self.num_emptied += 1


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> FakeMemory:
    return FakeMemory(monkeypatch)


def test_what_the_largest_step_has_loaded_is_in_use(
    memory: FakeMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tmp_path, "cpu", num_kv_blocks=None, memory_fraction=0.9)
    device = Device(torch.device("cpu"))
    blueprint = Blueprint.read(config, device)
    loaded = load_model(config, blueprint.source, device.device, torch.float32)
    warm_up = module.warm_up

    def largest(stages: Any, limits: Any, block_size: int, num_tokens: int) -> None:
        assert num_tokens == config.max_num_batched_tokens
        warm_up(stages, limits, block_size, num_tokens)
        memory.tables = [weakref.ref(each) for each in (stages.kv_cache, stages.states)]
        memory.held += LOADED_BY_A_STEP + KEPT
        memory.peak = HELD + STEP + stages.kv_cache.num_bytes

    monkeypatch.setattr(module, "warm_up", largest)
    limits, ledger = measured_limits(blueprint, loaded)
    assert memory.num_emptied == 1
    assert (ledger.total_bytes, ledger.workspace_bytes) == (TOTAL, STEP - KEPT)
    assert ledger.used_bytes == HELD + LOADED_BY_A_STEP + KEPT
    # A step as large as the largest is captured too.
    assert ledger.graphs_bytes > ledger.workspace_bytes
    left = int(0.9 * TOTAL) - ledger.used_bytes - ledger.workspace_bytes - ledger.graphs_bytes
    assert limits.num_blocks == left // blueprint.shape.block_bytes


@pytest.mark.parametrize("kept", [50 * MIB, 49 * MIB])
def test_graphs_that_take_more_than_was_kept_for_them_are_told(
    kept: int, memory: FakeMemory, caplog: pytest.LogCaptureFixture
) -> None:
    def capture() -> None:
        memory.held += 25 * MIB

    meter = GraphMeter(Device(torch.device("cpu")), kept)
    with caplog.at_level(logging.WARNING):
        meter.measure(capture)
        memory.held += 300 * MIB  # what steps between two captures take
        meter.measure(capture)
        meter.warn_if_more()
    assert meter.taken_bytes == 50 * MIB
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (1 if kept < 50 * MIB else 0)
    assert all("50.0 MiB of the device, 1.0 MiB more" in line for line in told)


@pytest.mark.parametrize("held_mib", [700, 800])
def test_what_cannot_fit_is_refused_before_a_weight_is_read(
    held_mib: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(torch.device("cpu"))
    device.is_cuda = True  # all that is asked of it before the weights are read
    monkeypatch.setattr(start_up, "_open_device", lambda _: device)
    monkeypatch.setattr(start_up, "total_bytes", lambda _: TOTAL)
    monkeypatch.setattr(start_up, "held_bytes", lambda _: held_mib * MIB)

    def load(*_: Any) -> Any:
        raise InterruptedError("weights are read")

    monkeypatch.setattr(start_up, "load_model", load)
    config = tiny_config(
        tmp_path, "cpu", num_kv_blocks=None, kv_cache_bytes=150 * MIB, memory_fraction=0.9
    )
    fits = held_mib == 700
    sum_of_it = r"0\.9 of 1000\.0 MiB, less 800\.\d MiB .* leave 99\.\d MiB; .* at least 150\.0 MiB"
    with pytest.raises(InterruptedError if fits else ConfigError) as refused:
        start_up.start_stages(config, 1, lambda phase: None)
    assert fits or re.search(sum_of_it, str(refused.value)), refused.value
