"""A tensor of a checkpoint that has not been read, whatever the format."""

from dataclasses import dataclass
from typing import Final, Protocol

import torch

# Numbers that are converted at a time, for the caches' sake.
_CHUNK_ELEMENTS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FourBitWeight:
    """A matrix of 4-bit codes: number = code * scale + offset, with one scale and offset per 32 codes."""

    # [out, in] uint8, 0 .. 15
    codes: torch.Tensor
    # [out, in / 32] float32
    scales: torch.Tensor
    # [out, in / 32] float32
    offsets: torch.Tensor

    def copy_to(self, out: torch.Tensor) -> None:
        """Writes: out [out, in], the numbers in any float type."""
        num_rows, row_size = out.shape
        rows_at_a_time = max(1, _CHUNK_ELEMENTS // row_size)
        for start in range(0, num_rows, rows_at_a_time):
            rows = slice(start, start + rows_at_a_time)
            scales, offsets = self.scales[rows].unsqueeze(-1), self.offsets[rows].unsqueeze(-1)
            groups = self.codes[rows].view(*scales.shape[:2], -1)
            out[rows].copy_(groups.float().mul_(scales).add_(offsets).view(-1, row_size))


class StoredTensor(Protocol):
    """A tensor on disk. Reading it takes memory for itself and a small buffer."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes, slowest first."""

    def copy_to(self, out: torch.Tensor) -> None:
        """Reads it. Writes: out, of the same shape, any float type and device, converting on the way."""

    def four_bit(self) -> FourBitWeight | None:
        """A matrix as its exact 4-bit codes, None if it is not stored in such a form."""
