"""The gated activation between the two products of a feed-forward layer."""

import torch

from pillion.kernels.silu_and_mul import reference


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up with silu(x) = x / (1 + exp(-x)), the SwiGLU of arXiv 2002.05202.

    gate_up [n, 2 * ffn]: gate in the first half of each row, up in the second
    returns [n, ffn], a new tensor of the same type
    """
    if gate_up.is_cuda:
        from pillion.kernels.silu_and_mul import triton_impl

        return triton_impl.silu_and_mul(gate_up)
    return reference.silu_and_mul(gate_up)
