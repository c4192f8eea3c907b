"""The one configuration: TOML file, command line flags and Python arguments are the same fields."""

import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from pillion.runtime.errors import ConfigError

LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set. None and "auto" mean: chosen from the model and the device."""

    model: str
    name: str = "default"
    served_model_name: str | None = None
    tokenizer: str | None = None  # where tokenizer and chat template come from, if not the model
    device: str = "auto"  # "auto", "cpu", "cuda", "cuda:0"
    dtype: DtypeName = "auto"
    load_format: LoadFormat = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int = 16  # tokens per KV block
    num_kv_blocks: int | None = None  # overrides the memory settings below
    kv_cache_bytes: int | None = None
    memory_fraction: float = 0.9  # of the device's memory, weights and workspace included (CUDA)
    enable_prefix_caching: bool = True
    max_queued_requests: int = 1024  # open requests beyond max_num_seqs before refusal
    max_repeat: int = 64  # steps that one plan may grant
    steps_in_flight: int = 2
    cpu_threads: int | None = None
    allow_request_templates: bool = False
    drain_s: float = 10.0
    start_timeout_s: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        _positive("max_model_len", self.max_model_len)
        _positive("max_num_seqs", self.max_num_seqs)
        _positive("max_num_batched_tokens", self.max_num_batched_tokens)
        _positive("num_kv_blocks", self.num_kv_blocks)
        _positive("kv_cache_bytes", self.kv_cache_bytes)
        _positive("cpu_threads", self.cpu_threads)
        _positive("max_repeat", self.max_repeat)
        _positive("steps_in_flight", self.steps_in_flight)
        if self.block_size not in (8, 16, 32, 64, 128):
            raise ConfigError(f"block_size must be 8, 16, 32, 64 or 128, got {self.block_size}")
        if not 0.05 <= self.memory_fraction <= 0.99:
            raise ConfigError(
                f"memory_fraction must be between 0.05 and 0.99, got {self.memory_fraction}"
            )
        if self.max_queued_requests < 0:
            raise ConfigError(
                f"max_queued_requests must be at least 0, got {self.max_queued_requests}"
            )
        if self.drain_s < 0 or self.start_timeout_s <= 0:
            raise ConfigError("drain_s must be at least 0 and start_timeout_s above 0")

    def to_json(self) -> bytes:
        """The bytes from which an actor reads its configuration."""
        return msgspec.json.encode(self)


def from_json(data: bytes) -> EngineConfig:
    """Reads what `EngineConfig.to_json` wrote."""
    return msgspec.json.decode(data, type=EngineConfig)


def make_config(fields: dict[str, Any], file: Path | None = None) -> EngineConfig:
    """A configuration from a TOML file and fields that override it; None fields do not.

    Raises ConfigError naming the field that is unknown or has a wrong type.
    """
    merged: dict[str, Any] = {}
    if file is not None:
        try:
            merged.update(tomllib.loads(file.read_text()))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"cannot read the configuration file {file}: {error}") from error
    merged.update({name: value for name, value in fields.items() if value is not None})
    try:
        return msgspec.convert(merged, EngineConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from error


def _positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ConfigError(f"{name} must be at least 1, got {value}")
