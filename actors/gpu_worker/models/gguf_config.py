"""ModelConfig from the metadata of a GGUF file, with the keys that llama.cpp reads."""

from typing import Any, Final

import numpy as np

from pillion.actors.gpu_worker.models.families import FAMILIES
from pillion.actors.gpu_worker.models.model_config import ModelConfig, RopeConfig, RopeType
from pillion.runtime.errors import ModelError
from pillion.runtime.gguf_file import GgufFile, GgufTensor

_DEFAULT_THETA: Final = 10_000.0
_DIVISORS_TENSOR: Final = "rope_freqs.weight"
_ROPE_TYPES: Final[dict[str, RopeType]] = {"none": "default", "linear": "linear", "yarn": "yarn"}


def read_gguf_config(file: GgufFile) -> ModelConfig:
    """The model's shape. Biases and the head are as the file's tensors say.

    Raises ModelError naming the file and what is missing or not supported.
    """
    name = file.string("general.architecture")
    family = next((each for each in FAMILIES if each.gguf_architecture == name), None)
    if family is None:
        known = ", ".join(sorted({each.gguf_architecture for each in FAMILIES}))
        raise ModelError(f"{file.path}: architecture {name!r}; supported are {known}")
    keys = _Keys(file, family.gguf_architecture)
    if keys.integer("expert_count", 0):
        raise ModelError(f"{file.path}: mixtures of experts are not supported")
    hidden_size = keys.integer("embedding_length")
    num_layers = keys.integer("block_count")
    num_q_heads = keys.integer("attention.head_count")
    head_dim = keys.integer("attention.key_length", hidden_size // num_q_heads)
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise ModelError(f"{file.path}: keys and values of different lengths are not supported")
    if keys.integer("rope.dimension_count", head_dim) != head_dim:
        raise ModelError(f"{file.path}: a rotation of only part of each head is not supported")
    return ModelConfig(
        architecture=family.architecture,
        vocab_size=_tensor(file, "token_embd.weight").shape[0],
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length"),
        num_layers=num_layers,
        num_q_heads=num_q_heads,
        num_kv_heads=keys.integer("attention.head_count_kv", num_q_heads),
        head_dim=head_dim,
        max_position_embeddings=keys.integer("context_length"),
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon", 1e-6),
        rope=_rope(file, keys),
        tie_word_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm=family.qk_norm,
        sliding_windows=(keys.integer("attention.sliding_window", 0) or None,) * num_layers,
        eos_token_ids=_eos_token_ids(file),
        dtype=None,
    )


class _Keys:
    """Metadata under the architecture's prefix."""

    def __init__(self, file: GgufFile, prefix: str) -> None:
        self._file = file
        self._prefix = prefix

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer; 0 only as the default."""
        value = self._present(key, self._file.integer(f"{self._prefix}.{key}"), default)
        if value < 1 and value != default:
            raise ModelError(f"{self._file.path}: {self._prefix}.{key} is {value}")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        return float(self._present(key, self._file.number(f"{self._prefix}.{key}"), default))

    def string(self, key: str) -> str | None:
        return self._file.string(f"{self._prefix}.{key}")

    def _present(self, key: str, value: Any, default: Any) -> Any:
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self._file.path}: metadata key {self._prefix}.{key} is missing")
        return value


def _tensor(file: GgufFile, name: str) -> GgufTensor:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise ModelError(f"{file.path}: tensor {name} is missing")
    return tensor


def _rope(file: GgufFile, keys: _Keys) -> RopeConfig:
    name = keys.string("rope.scaling.type") or "none"
    kind = _ROPE_TYPES.get(name)
    if kind is None:
        known = ", ".join(_ROPE_TYPES)
        raise ModelError(f"{file.path}: rope scaling type {name!r}; supported are {known}")
    factor = 1.0
    if kind != "default":
        factor = keys.number("rope.scaling.factor")
    elif (legacy := keys.number("rope.scale_linear", 1.0)) != 1.0:
        kind, factor = "linear", legacy
    original = keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))
    return RopeConfig(
        theta=keys.number("rope.freq_base", _DEFAULT_THETA),
        type=kind,
        factor=factor,
        original_max_positions=original,
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        frequency_divisors=_frequency_divisors(file),
    )


def _frequency_divisors(file: GgufFile) -> tuple[float, ...] | None:
    """How llama.cpp stores the frequencies of llama3: computed when the file was made."""
    tensor = file.tensors.get(_DIVISORS_TENSOR)
    if tensor is None:
        return None
    if tensor.type.name != "F32":
        raise ModelError(f"{file.path}: {_DIVISORS_TENSOR} must be F32, not {tensor.type.name}")
    return tuple(file.raw(tensor).reshape(-1).view(np.float32).tolist())


def _eos_token_ids(file: GgufFile) -> tuple[int, ...]:
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    found = [file.integer(key) for key in keys]
    return tuple(dict.fromkeys(each for each in found if each is not None))
