"""A tensor of a checkpoint that has not been read, whatever the format."""

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class FourBitWeight:
    """A matrix of 4-bit codes: number = code * scale + offset, with one scale and offset per 32 codes."""

    # [out, in] uint8, 0 .. 15
    codes: torch.Tensor
    # [out, in / 32] float32
    scales: torch.Tensor
    # [out, in / 32] float32
    offsets: torch.Tensor


class StoredTensor(Protocol):
    """A tensor on disk. Reading it takes memory for itself and a small buffer."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes, slowest first."""

    def copy_to(self, out: torch.Tensor) -> None:
        """Reads it. Writes: out, of the same shape, any float type and device, converting on the way."""

    def four_bit(self) -> FourBitWeight | None:
        """A matrix as its exact 4-bit codes, None if it is not stored in such a form."""
