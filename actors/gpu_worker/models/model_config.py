"""What the worker must know about a model before it reads a weight, whatever file it comes from."""

from dataclasses import dataclass
from typing import Final, Literal

import torch

# What most configurations say, and none that a GGUF file has.
DEFAULT_INITIALIZER_RANGE: Final = 0.02

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: base frequency and how it is stretched to longer contexts.

    Fields that a type does not use keep their defaults. `original_max_positions` is the context that the
    model was trained with before it was stretched.
    """

    theta: float
    type: RopeType = "default"
    rotary_dim_fraction: float = 1.0  # of head_dim; the rest of a head is not rotated
    factor: float = 1.0
    original_max_positions: int = 0
    # llama3
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    # yarn
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    # Divisors of the frequencies, one per pair of elements, where the file holds them (GGUF).
    frequency_divisors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder of the Llama kind."""

    architecture: str  # as in config.json, e.g. "LlamaForCausalLM"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool  # of the attention's output product
    mlp_bias: bool
    qk_norm: bool  # RMS norm of each query and key head before the rotation
    # Per layer: how many tokens back attention sees, itself included; None: all.
    sliding_windows: tuple[int | None, ...]
    eos_token_ids: tuple[int, ...]
    # As the weights are stored; None: not one of torch's float types.
    dtype: torch.dtype | None
    # Standard deviation of weights before training: what random weights have.
    initializer_range: float = DEFAULT_INITIALIZER_RANGE

    @property
    def max_positions(self) -> int:
        """The longest sequence that the position embedding is made for."""
        rope = self.rope
        if rope.type == "yarn":
            stretched = int(rope.original_max_positions * rope.factor)
            return max(self.max_position_embeddings, stretched)
        if rope.type == "linear":
            return int(self.max_position_embeddings * rope.factor)
        # llama3 states the stretched context. Beyond max_position_embeddings "dynamic" would change the
        # frequencies of tokens whose keys are in the cache already, so it ends there.
        return self.max_position_embeddings


DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
