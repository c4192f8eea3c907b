"""Frequencies of every scaling against transformers, and the table of a step."""

from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pillion.actors.gpu_worker.layers.rotary import (
    RotaryEmbedding,
    attention_magnitude,
    rotary_frequencies,
)
from pillion.actors.gpu_worker.models.model_config import RopeConfig

HEAD_DIM = 64
CPU = torch.device("cpu")

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32768},
}


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_equal_transformers(name: Any, theta: float) -> None:
    settings = SCALINGS[name]
    config = transformers.LlamaConfig(
        head_dim=HEAD_DIM,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": name, "rope_theta": theta} | settings,
    )
    expected, magnitude = ROPE_INIT_FUNCTIONS[name](config, CPU)
    renamed = {
        key.replace("_position_embeddings", "_positions"): value for key, value in settings.items()
    }
    rope = RopeConfig(theta=theta, type=name, **renamed)
    torch.testing.assert_close(rotary_frequencies(rope, HEAD_DIM), expected, rtol=1e-6, atol=0)
    assert attention_magnitude(rope) == pytest.approx(magnitude)


def test_the_table_holds_cosines_then_sines() -> None:
    rotary = RotaryEmbedding(RopeConfig(theta=100.0), 4, CPU)
    table = rotary.cos_sin(torch.tensor([0, 3]))
    angles = torch.tensor([[0.0, 0.0], [3.0, 0.3]])
    torch.testing.assert_close(table, torch.stack((angles.cos(), angles.sin()), dim=1))


def test_yarn_scales_the_table() -> None:
    rope = RopeConfig(
        theta=100.0, type="yarn", factor=2.0, original_max_positions=64, attention_factor=1.5
    )
    assert RotaryEmbedding(rope, 8, CPU).cos_sin(torch.tensor([0]))[0, 0].tolist() == [1.5] * 4


def test_stored_divisors_replace_the_formula() -> None:
    plain = rotary_frequencies(RopeConfig(theta=100.0), 4)
    rope = RopeConfig(theta=100.0, frequency_divisors=(1.0, 8.0))
    torch.testing.assert_close(rotary_frequencies(rope, 4), plain / torch.tensor([1.0, 8.0]))
