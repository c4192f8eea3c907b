"""ModelConfig from the config.json of a Hugging Face directory, in the spellings of transformers 4 and 5."""

import json
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from pillion.actors.gpu_worker.models.families import FAMILIES, Family
from pillion.actors.gpu_worker.models.model_config import (
    DEFAULT_INITIALIZER_RANGE,
    DTYPES,
    ModelConfig,
    RopeConfig,
    RopeType,
)
from pillion.runtime.errors import ModelError

T = TypeVar("T")

_ROPE_TYPES: Final = ("default", "linear", "dynamic", "llama3", "yarn")
_DEFAULT_THETA: Final = 10_000.0  # what transformers takes if a config of these families names none


def read_hf_config(directory: Path) -> ModelConfig:
    """The model's shape.

    Raises ModelError naming the file and the field for a family, a rope type or a setting that is not
    supported, and for a field that is missing or malformed.
    """
    fields = _Fields(directory / "config.json")
    family = _family(fields)
    _refuse_quantization(fields)
    if (activation := fields.get("hidden_act", str, "silu")) not in ("silu", "swish"):
        raise fields.error("hidden_act", f"is {activation!r}; only silu is supported")
    hidden_size = fields.require("hidden_size", int)
    num_layers = fields.require("num_hidden_layers", int)
    num_q_heads = fields.require("num_attention_heads", int)
    num_kv_heads = fields.get("num_key_value_heads", int, None) or num_q_heads
    if num_q_heads % num_kv_heads:
        raise fields.error("num_key_value_heads", f"{num_kv_heads} must divide {num_q_heads} heads")
    attention_bias = family.attention_bias == "setting" and fields.get(
        "attention_bias", bool, False
    )
    return ModelConfig(
        architecture=family.architecture,
        vocab_size=fields.require("vocab_size", int),
        hidden_size=hidden_size,
        intermediate_size=fields.require("intermediate_size", int),
        num_layers=num_layers,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=fields.get("head_dim", int, None) or hidden_size // num_q_heads,
        max_position_embeddings=fields.require("max_position_embeddings", int),
        rms_norm_eps=fields.get("rms_norm_eps", float, 1e-6),
        rope=_rope(fields),
        tie_word_embeddings=fields.get("tie_word_embeddings", bool, False),
        qkv_bias=attention_bias or family.attention_bias == "qkv",
        output_bias=attention_bias,
        mlp_bias=family.mlp_bias == "setting" and fields.get("mlp_bias", bool, False),
        qk_norm=family.qk_norm,
        sliding_windows=_sliding_windows(fields, family, num_layers),
        eos_token_ids=_eos_token_ids(fields, directory),
        dtype=DTYPES.get(fields.get("dtype", str, None) or fields.get("torch_dtype", str, "")),
        initializer_range=_initializer_range(fields),
    )


class _Fields:
    """A JSON object whose fields are taken out with their types checked."""

    def __init__(self, path: Path, values: dict[str, Any] | None = None, prefix: str = "") -> None:
        self._path = path
        self._prefix = prefix
        self.values = _read_object(path) if values is None else values

    def get(self, name: str, kind: type[T], default: Any) -> T:
        """The field, or `default` if it is missing or null. An int passes for a float."""
        value = self.values.get(name)
        if value is None:
            return cast("T", default)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return cast("T", float(value))
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(name, f"must be of type {kind.__name__}, got {value!r:.80}")
        return value

    def require(self, name: str, kind: type[T]) -> T:
        """The field, a positive number."""
        value = self.get(name, kind, None)
        if value is None:
            raise self.error(name, "is missing")
        if isinstance(value, int | float) and value <= 0:
            raise self.error(name, f"must be positive, got {value}")
        return value

    def nested(self, name: str) -> "_Fields":
        """The fields of an object in this one; none if it is missing or null."""
        return _Fields(self._path, self.get(name, dict, {}), f"{self._prefix}{name}.")

    def error(self, name: str, problem: str) -> ModelError:
        return ModelError(f"{self._path}: {self._prefix}{name} {problem}")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return values


def _family(fields: _Fields) -> Family:
    names = fields.get("architectures", list, [])
    for family in FAMILIES:
        if family.architecture in names:
            return family
    known = ", ".join(family.architecture for family in FAMILIES)
    raise fields.error("architectures", f"is {names!r:.200}; supported are {known}")


def _refuse_quantization(fields: _Fields) -> None:
    method = fields.nested("quantization_config").get("quant_method", str, None)
    # transformers leaves "gguf" in configs of models that it has dequantized.
    if method not in (None, "gguf"):
        raise fields.error(
            "quantization_config",
            f"says that the weights are quantized with {method!r}, which is not supported;"
            " take the original checkpoint or a GGUF file",
        )


def _rope(fields: _Fields) -> RopeConfig:
    """`rope_parameters` (transformers 5), or `rope_theta` beside `rope_scaling` (transformers 4)."""
    rope = fields.nested("rope_parameters")
    if not rope.values:
        rope = fields.nested("rope_scaling")
    rope = _same_for_all_layers(rope)
    kind = rope.get("rope_type", str, None) or rope.get("type", str, "default")
    if kind not in _ROPE_TYPES:
        raise rope.error("rope_type", f"is {kind!r}; supported are {', '.join(_ROPE_TYPES)}")
    theta = rope.get("rope_theta", float, None) or fields.get("rope_theta", float, _DEFAULT_THETA)
    # A type that no one can use without its factor would otherwise run unstretched, and wrong.
    factor = rope.get("factor", float, 1.0) if kind == "default" else rope.require("factor", float)
    max_positions = fields.require("max_position_embeddings", int)
    original = fields.get("original_max_position_embeddings", int, None) or rope.get(
        "original_max_position_embeddings", int, max_positions
    )
    is_llama3 = kind == "llama3"
    return RopeConfig(
        theta=theta,
        type=cast("RopeType", kind),
        rotary_dim_fraction=rope.get("partial_rotary_factor", float, None)
        or fields.get("partial_rotary_factor", float, 1.0),
        factor=factor,
        original_max_positions=original,
        low_freq_factor=rope.require("low_freq_factor", float) if is_llama3 else 1.0,
        high_freq_factor=rope.require("high_freq_factor", float) if is_llama3 else 4.0,
        attention_factor=rope.get("attention_factor", float, None),
        beta_fast=rope.get("beta_fast", float, None) or 32.0,
        beta_slow=rope.get("beta_slow", float, None) or 1.0,
        mscale=rope.get("mscale", float, None),
        mscale_all_dim=rope.get("mscale_all_dim", float, None),
        truncate=rope.get("truncate", bool, True),
    )


def _same_for_all_layers(rope: _Fields) -> _Fields:
    """transformers 5 may state the parameters once per kind of layer."""
    kinds = [name for name, value in rope.values.items() if isinstance(value, dict)]
    if not kinds:
        return rope
    if any(rope.values[name] != rope.values[kinds[0]] for name in kinds):
        raise rope.error(kinds[0], f"differs from {', '.join(kinds[1:])}, which is not supported")
    return rope.nested(kinds[0])


def _sliding_windows(fields: _Fields, family: Family, num_layers: int) -> tuple[int | None, ...]:
    window = fields.get("sliding_window", int, 0)
    is_used = fields.get("use_sliding_window", bool, False) or family.window == "all"
    if family.window == "none" or not is_used or fields.values.get("sliding_window") is None:
        return (None,) * num_layers
    if window < 1:
        raise fields.error("sliding_window", f"must be at least 1, got {window}")
    kinds = fields.get("layer_types", list, [])
    if kinds and family.window == "upper":
        if len(kinds) != num_layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
            raise fields.error("layer_types", f"must name {num_layers} full or sliding attentions")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    # What transformers assumes for these families if a config with windows doesn't say it.
    first = fields.get("max_window_layers", int, 28) if family.window == "upper" else 0
    return tuple(window if layer >= first else None for layer in range(num_layers))


def _initializer_range(fields: _Fields) -> float:
    found = fields.get("initializer_range", float, DEFAULT_INITIALIZER_RANGE)
    if found < 0:
        raise fields.error("initializer_range", f"must not be negative, got {found}")
    return found


def _eos_token_ids(fields: _Fields, directory: Path) -> tuple[int, ...]:
    """Those of config.json and, as they are often more, of generation_config.json."""
    found = _token_ids(fields, "eos_token_id")
    generation = directory / "generation_config.json"
    if generation.is_file():
        found += _token_ids(_Fields(generation), "eos_token_id")
    return tuple(dict.fromkeys(found))


def _token_ids(fields: _Fields, name: str) -> list[int]:
    value = fields.values.get(name)
    if value is None:
        return []
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(each, int) and each >= 0 for each in ids):
        raise fields.error(name, f"must be a token id or a list of them, got {value!r:.80}")
    return ids
