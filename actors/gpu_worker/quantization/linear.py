"""A matrix product prepared at load: one class per way of storing the weight, one interface for the model."""

from typing import Protocol

import torch
from torch.nn.functional import linear


class Linear(Protocol):
    """x W^T + b."""

    @property
    def num_bytes(self) -> int:
        """Memory that the weight takes, in all its forms."""

    @property
    def row_bytes(self) -> int:
        """Memory that the product with one row reads."""

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """[n, in] to a new [n, out], of x's type."""


class DenseLinear:
    """The weight as it is, in the type of the activations."""

    # [out, in]; [out]. A weight that is not owned is counted by someone else.
    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, owned: bool = True
    ) -> None:
        self.row_bytes = weight.nbytes
        self.num_bytes = self.row_bytes if owned else 0
        self.weight = weight
        self.bias = bias

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear.apply`."""
        return linear(x, self.weight, self.bias)
