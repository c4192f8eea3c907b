"""A worker's start with a tuning, without the device."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_bench import FakeBench
from tiny_models import make_reference
from untuned_models import H200, model_config

from pillion.actors.gpu_worker import start_up
from pillion.actors.gpu_worker.compile_ahead import Compilation
from pillion.actors.gpu_worker.tuning import start as module
from pillion.actors.gpu_worker.tuning.forms import Card
from pillion.actors.gpu_worker.tuning.plan import TuningPlan
from pillion.actors.gpu_worker.tuning.start import run_tuning, tuning_left
from pillion.kernels.fused_linear.tiles import choose, choose_untuned
from pillion.runtime.config import EngineConfig

MODEL = model_config()
LAYER = SimpleNamespace(qkv=SimpleNamespace(weight=torch.empty(0)))
LOADED: Any = SimpleNamespace(model=SimpleNamespace(fused_layers=[LAYER]), weights_bytes=1)


def left(**fields: Any) -> TuningPlan | None:
    config = EngineConfig(model="tiny", max_num_seqs=8, **fields)
    return tuning_left(config, MODEL, torch.bfloat16, torch.device("cuda", 0))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    """On a card where the last form tried is the fastest."""
    found = FakeBench()
    found.us = lambda candidate: 10.0 - len(found.timed) / 1e3
    monkeypatch.setattr(Card, "of", lambda device: H200)
    monkeypatch.setattr(module, "ModelBench", lambda *_: found)
    monkeypatch.setattr(module, "raise_clocks", lambda device: None)
    return found


def tune_all(plan: TuningPlan, num_lines: int | None = None) -> None:
    lines = [f"{index} right" for index in range(len(plan.candidates()))]
    run_tuning(plan, LOADED, lines[:num_lines], 20.0)


def test_a_second_start_uses_what_the_first_has_found(
    bench: FakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    plan = left()
    assert plan is not None
    with caplog.at_level(logging.INFO):
        tune_all(plan)
    assert "microseconds of a layer before and after: 1 rows 50.0 40.0, 8 rows 50.0" in caplog.text
    products = [(product.kind, product.n, product.k) for product in plan.products]
    tuned = [choose(*product, rows) for product in products for rows in (1, 8)]
    assert tuned != [choose_untuned(*product, rows) for product in products for rows in (1, 8)]
    num_timed = len(bench.timed)
    assert num_timed > 50

    assert left(tuning_seconds=0.0) is None
    assert choose(*products[0], 1) == choose_untuned(*products[0], 1)
    assert left() is None
    assert [choose(*product, rows) for product in products for rows in (1, 8)] == tuned
    assert len(bench.timed) == num_timed


def test_a_start_that_had_too_little_time_is_made_up_for_when_there_is_more(
    bench: FakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    plan = left()
    assert plan is not None
    with caplog.at_level(logging.INFO):
        tune_all(plan, num_lines=10)
    assert "not everything was tried in 20 s" in caplog.text
    assert left() is None
    assert left(tuning_seconds=60.0) == plan


def test_time_is_bounded(bench: FakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = left()
    assert plan is not None
    times = iter(range(0, 10**12, 3 * 10**9))
    monkeypatch.setattr(module, "now_ns", lambda: next(times))
    tune_all(plan)
    assert {candidate.rows for candidate in bench.timed} == {1}


def test_a_model_that_is_not_fused_is_left_alone(bench: FakeBench) -> None:
    plan = left()
    assert plan is not None
    loaded: Any = SimpleNamespace(model=SimpleNamespace(fused_layers=[]), weights_bytes=1)
    run_tuning(plan, loaded, ["0 right"], 20.0)
    assert not bench.timed
    assert left() == plan


class Checked(Compilation):
    """Processes that have found one candidate right."""

    def __init__(self) -> None:
        super().__init__([], None)

    def wait(self) -> list[str]:
        return ["0 right"]


@pytest.mark.parametrize("is_left", [True, False])
def test_tuning_is_a_phase_between_the_weights_and_the_pool(
    is_left: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: TuningPlan
) -> None:
    make_reference("llama").save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").touch()
    calls: list[Any] = []
    monkeypatch.setattr(start_up, "tuning_left", lambda *_: plan if is_left else None)
    monkeypatch.setattr(start_up, "run_tuning", lambda *arguments: calls.append(arguments))

    def check_ahead(config: EngineConfig) -> Compilation:
        return Checked()

    monkeypatch.setattr(start_up, "check_ahead", check_ahead)
    config = EngineConfig(
        model=str(tmp_path), device="cpu", num_kv_blocks=32, max_num_seqs=4, tuning_seconds=7.0
    )
    phases: list[str] = []
    start_up.start_stages(config, 1, phases.append)
    if is_left:
        assert phases[1:5] == ["weights", "kernels", "tuning", "kv cache"]
        assert (calls[0][0], *calls[0][2:]) == (plan, ["0 right"], 7.0)
    else:
        assert "tuning" not in phases
        assert not calls
