"""A norm whose gain is applied before a product and whose division comes after it."""

from typing import Final, NamedTuple

import torch

# One variant of a kernel for most numbers of parts.
_MOST_PARTS: Final = 64


def padded_parts(squares: torch.Tensor) -> int:
    """Parts that a kernel reads of [parts, n], a power of two."""
    return max(_MOST_PARTS, 1 << (len(squares) - 1).bit_length())


class RowScale(NamedTuple):
    """The factor of each row of a product: 1 / sqrt(mean of the squares of the row that went in + eps)."""

    # [parts, n] float32: sums of squares, each over a part of a row
    squares: torch.Tensor
    width: int  # of a row that went in
    eps: float

    def factors(self) -> torch.Tensor:
        """[n] float32."""
        return torch.rsqrt(self.squares.sum(0) / self.width + self.eps)
