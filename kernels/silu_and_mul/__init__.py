"""The gated activation between the two products of a feed-forward layer."""

import torch

from pillion.kernels.rms_norm.row_scale import RowScale
from pillion.kernels.silu_and_mul import reference


def silu_and_mul(gate_up: torch.Tensor, row_scale: RowScale | None = None) -> torch.Tensor:
    """silu(gate) * up with silu(x) = x / (1 + exp(-x)), the SwiGLU of arXiv 2002.05202.

    gate_up [n, 2 * ffn]: gate in the first half of each row, up in the second
    row_scale          multiplies each row first
    returns [n, ffn], a new tensor of the same type
    """
    if gate_up.is_cuda:
        from pillion.kernels.silu_and_mul import triton_impl

        return triton_impl.silu_and_mul(gate_up, row_scale)
    return reference.silu_and_mul(gate_up, row_scale)
