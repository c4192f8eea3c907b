"""Which of its layers' ways a step with prompts takes on a CUDA device, told by layers that only note it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import Runner, load, make_reference

from pillion.actors.gpu_worker.captured_inputs import CapturedInputs
from pillion.actors.gpu_worker.mixed_table import MixedShape
from pillion.actors.gpu_worker.models.transformer import MOST_FUSED_TOKENS, Transformer
from pillion.actors.gpu_worker.plan_rows import PlanRows
from pillion.actors.gpu_worker.step_inputs import StepInputs


class NotedLayer:
    """In the place of a FusedLayer; leaves the stream as it is."""

    def __init__(self) -> None:
        self.ways: list[str] = []

    def first_gain(self, num_rows: int) -> None:
        return None

    def apply(self, x: torch.Tensor, *_: Any) -> None:
        self.ways.append("decode")

    def apply_prompts(self, x: torch.Tensor, *_: Any) -> torch.Tensor:
        self.ways.append("prompts")
        return x


@pytest.fixture
def ways(tmp_path: Path) -> Callable[[StepInputs], list[str]]:
    """What a step's layers were asked for."""
    make_reference("llama").save_pretrained(tmp_path)
    loaded = load(tmp_path)
    model: Transformer = loaded.model
    kv_cache = Runner(loaded).kv_cache

    def run(inputs: StepInputs) -> list[str]:
        layer: Any = NotedLayer()
        model._fused = [layer]
        model.forward(inputs.input_ids, inputs.positions, kv_cache, inputs.attention)
        ways: list[str] = layer.ways
        return ways

    return run


def captured(rig: Any, num_tokens: int) -> StepInputs:
    preparer = rig.worker._steps._input_preparer
    inputs: CapturedInputs = preparer._captured
    shape = MixedShape(num_tokens, 4, 4)
    return inputs.mixed_inputs(shape, inputs.empty_mixed_table(shape))


def test_a_captured_step_takes_the_products_of_decode_steps_as_far_as_they_were_measured(
    make_rig: Any, ways: Callable[[StepInputs], list[str]]
) -> None:
    assert ways(captured(make_rig(), MOST_FUSED_TOKENS)) == ["decode"]
    assert ways(captured(make_rig(), MOST_FUSED_TOKENS + 1)) == ["prompts"]


def test_one_with_any_number_of_tokens_takes_what_every_start_has_compiled(
    make_rig: Any, ways: Callable[[StepInputs], list[str]]
) -> None:
    rig = make_rig()
    rig.step([(0, 0, 5)], new=[rig.new(0, [1, 2, 3, 4, 5])])
    preparer = rig.worker._steps._input_preparer
    preparer.apply(rig.plan([], new=[rig.new(1, [6, 7, 8])]))
    decode, prompt = np.array([0], dtype=np.int32), np.array([1], dtype=np.int32)
    starts = np.zeros(1, dtype=np.int64)
    assert ways(preparer.prepare(PlanRows(decode, prompt, starts, starts + 3))) == ["prompts"]
    assert ways(preparer.prepare(PlanRows.of_decode(decode))) == ["decode"]
