"""Random weights for a model of which only the configuration is there: for benchmarks and tests."""

import zlib
from typing import Final

import torch

from pillion.actors.gpu_worker.models.model_config import ModelConfig
from pillion.actors.gpu_worker.quantization.stored_tensor import FourBitWeight, StoredTensor

_STANDARD_DEVIATION: Final = 0.02


class DummyCheckpoint:
    """See `Checkpoint`. Every tensor exists; the same seed gives the same weights on the same device."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self.config = config
        self._seed = seed

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """See `Checkpoint.tensor`."""
        return _RandomTensor(shape, zlib.crc32(name.encode(), self._seed), is_norm="norm" in name)


class _RandomTensor:
    def __init__(self, shape: tuple[int, ...], seed: int, *, is_norm: bool) -> None:
        self.shape = shape
        self._seed = seed
        self._is_norm = is_norm

    def copy_to(self, out: torch.Tensor) -> None:
        if self._is_norm:
            out.fill_(1.0)
        else:
            generator = torch.Generator(out.device).manual_seed(self._seed)
            out.normal_(0.0, _STANDARD_DEVIATION, generator=generator)

    def four_bit(self) -> FourBitWeight | None:
        return None
