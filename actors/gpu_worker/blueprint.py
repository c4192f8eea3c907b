"""What a worker is going to load, as far as the configuration and the model's files say."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.kv_cache import KvCache
from pillion.actors.gpu_worker.limits import KvShape
from pillion.actors.gpu_worker.models.checkpoint import Checkpoint
from pillion.actors.gpu_worker.models.loader import (
    choose_branch_dtype,
    choose_dtype,
    num_weights,
    open_checkpoint,
)
from pillion.actors.gpu_worker.models.model_config import ModelConfig
from pillion.runtime.config import EngineConfig
from pillion.runtime.model_source import ModelSource, resolve_model


@dataclass(frozen=True, slots=True)
class Blueprint:
    """No weight has been read yet."""

    config: EngineConfig
    device: Device
    source: ModelSource
    checkpoint: Checkpoint
    dtype: torch.dtype  # of the activations
    kv_dtype: torch.dtype
    shape: KvShape

    @classmethod
    def read(cls, config: EngineConfig, device: Device) -> "Blueprint":
        """Opens the model's files. Raises ConfigError or ModelError for what cannot work."""
        source = resolve_model(config.model_path or config.model)
        checkpoint = open_checkpoint(config, source)
        model_config = checkpoint.config
        dtype = choose_dtype(config.dtype, device.device, model_config)
        kv_dtype = choose_branch_dtype(config.dtype, device.device, dtype)
        shape = KvShape(
            num_layers=model_config.num_layers,
            num_kv_heads=model_config.num_kv_heads,
            head_dim=model_config.head_dim,
            block_size=config.block_size,
            bytes_per_number=kv_dtype.itemsize,
        )
        return cls(config, device, source, checkpoint, dtype, kv_dtype, shape)

    @property
    def model_config(self) -> ModelConfig:
        """The sizes of the model."""
        return self.checkpoint.config

    @property
    def num_weights(self) -> int:
        """Numbers in all matrices of the model."""
        return num_weights(self.model_config)

    def kv_cache(self, num_blocks: int, on_layer: Callable[[], None] | None = None) -> KvCache:
        """A pool of so many blocks on the device."""
        return KvCache(
            num_blocks=num_blocks,
            num_layers=self.shape.num_layers,
            num_kv_heads=self.shape.num_kv_heads,
            block_size=self.shape.block_size,
            head_dim=self.shape.head_dim,
            dtype=self.kv_dtype,
            device=self.device.device,
            on_layer=on_layer,
        )
