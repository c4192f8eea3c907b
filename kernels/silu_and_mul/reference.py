"""The specification in torch, and the CPU path."""

import torch
from torch.nn.functional import silu


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `pillion.kernels.silu_and_mul.silu_and_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate).mul_(up)
