"""Random weights for a model of which only the configuration is there: for benchmarks and tests."""

import zlib

import torch

from pillion.actors.gpu_worker.models.model_config import ModelConfig
from pillion.actors.gpu_worker.quantization.stored_tensor import FourBitWeight, StoredTensor


class DummyCheckpoint:
    """See `Checkpoint`. Every tensor exists; the same seed gives the same weights on the same device.

    They are normally distributed, as wide as the configuration's `initializer_range`; gains of norms are 1.
    """

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self.config = config
        self._seed = seed

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """See `Checkpoint.tensor`."""
        seed = zlib.crc32(name.encode(), self._seed)
        deviation = None if "norm" in name else self.config.initializer_range
        return _RandomTensor(shape, seed, deviation)


class _RandomTensor:
    def __init__(self, shape: tuple[int, ...], seed: int, deviation: float | None) -> None:
        """`deviation` is the standard one; None: all are 1."""
        self.shape = shape
        self._seed = seed
        self._deviation = deviation

    def copy_to(self, out: torch.Tensor) -> None:
        if self._deviation is None:
            out.fill_(1.0)
        else:
            generator = torch.Generator(out.device).manual_seed(self._seed)
            out.normal_(0.0, self._deviation, generator=generator)

    def four_bit(self) -> FourBitWeight | None:
        return None
