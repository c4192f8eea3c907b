"""A norm whose gain is applied before a product and whose division comes after it."""

from typing import NamedTuple

import torch


class RowScale(NamedTuple):
    """The factor of each row of a product: 1 / sqrt(mean of the squares of the row that went in + eps)."""

    # [parts, n] float32: sums of squares, each over a part of a row
    squares: torch.Tensor
    width: int  # of a row that went in
    eps: float

    def factors(self) -> torch.Tensor:
        """[n] float32."""
        return torch.rsqrt(self.squares.sum(0) / self.width + self.eps)
