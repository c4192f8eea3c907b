"""What a product with a norm in front needs of the residual stream."""

from typing import NamedTuple

import torch


class Scaled(NamedTuple):
    """The stream before a norm, made by who wrote it: norm(stream) = x / sqrt(mean of its squares + eps)."""

    # [n, in]: the stream times the norm's gain, of its type
    x: torch.Tensor
    # [parts, n] float32: sums of the stream's squares, each over a part of its columns
    squares: torch.Tensor
