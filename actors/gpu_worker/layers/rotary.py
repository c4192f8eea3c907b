"""Rotary position embedding: the frequencies of every scaling, and a step's cosines and sines.

Formulas follow the papers as transformers implements them, in float32, so that logits agree:
RoPE arXiv 2104.09864, linear arXiv 2306.15595, YaRN arXiv 2309.00071, llama3 in Meta's llama-models.
"""

import math

import torch

from pillion.actors.gpu_worker.models.model_config import RopeConfig

# Positions of a table on the CPU, where memory is not ours alone: 16 MiB with heads of 128 elements.
_MAX_CPU_TABLE = 32_768


class RotaryEmbedding:
    """Turns positions into the table that `kernels.rotary_kv_write` takes."""

    def __init__(
        self, rope: RopeConfig, head_dim: int, device: torch.device, max_positions: int = 0
    ) -> None:
        """The first `max_positions` are computed now, unless on a CPU they are very many."""
        # [rotary_dim / 2] float32
        self.frequencies = rotary_frequencies(rope, head_dim).to(device)
        self._magnitude = attention_magnitude(rope)
        # [max_positions, 2, rotary_dim / 2] float32; None: cos_sin computes them
        self.table: torch.Tensor | None = None
        if max_positions and (device.type == "cuda" or max_positions <= _MAX_CPU_TABLE):
            self.table = self._compute(torch.arange(max_positions, device=device))

    def cos_sin(self, positions: torch.Tensor) -> torch.Tensor:
        """Cosines and sines of positions [n]: [n, 2, rotary_dim / 2] float32. Once per step, for all layers."""
        if self.table is not None:
            return self.table.index_select(0, positions)
        return self._compute(positions)

    def _compute(self, positions: torch.Tensor) -> torch.Tensor:
        angles = positions.to(torch.float32).unsqueeze(1) * self.frequencies
        table = torch.stack((angles.cos(), angles.sin()), dim=1)
        return table if self._magnitude == 1.0 else table.mul_(self._magnitude)


def rotary_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per position of each pair of elements, [rotary_dim / 2] float32, fastest first."""
    rotary_dim = int(head_dim * rope.rotary_dim_fraction)
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.frequency_divisors is not None:
        return frequencies / torch.tensor(rope.frequency_divisors, dtype=torch.float32)
    match rope.type:
        case "linear":
            return frequencies / rope.factor
        case "llama3":
            return _llama3(frequencies, rope)
        case "yarn":
            return _yarn(frequencies, rope, rotary_dim)
        case "default" | "dynamic":
            # "dynamic" departs from the default beyond max_position_embeddings, where no sequence
            # goes (see ModelConfig.max_positions).
            return frequencies


def attention_magnitude(rope: RopeConfig) -> float:
    """The factor on cosines and sines by which YaRN sharpens attention; 1 for the other types."""
    if rope.type != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _yarn_scale(rope.factor, rope.mscale) / _yarn_scale(rope.factor, rope.mscale_all_dim)
    return _yarn_scale(rope.factor, 1.0)


def _yarn_scale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _llama3(frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    turns = rope.original_max_positions * frequencies / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequencies / rope.factor + blend * frequencies


def _yarn(frequencies: torch.Tensor, rope: RopeConfig, rotary_dim: int) -> torch.Tensor:
    """Between the pairs that turn beta_fast and beta_slow times in the original context, a linear ramp."""

    def pair_that_turns(times: float) -> float:
        ratio = rope.original_max_positions / (times * 2 * math.pi)
        return rotary_dim * math.log(ratio) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001
    pairs = torch.arange(rotary_dim // 2, dtype=torch.float32)
    stretched = ((pairs - low) / (high - low)).clamp(0, 1)
    return frequencies / rope.factor * stretched + frequencies * (1 - stretched)
