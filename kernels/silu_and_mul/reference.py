"""The specification in torch, and the CPU path."""

import torch
from torch.nn.functional import silu

from pillion.kernels.rms_norm.row_scale import RowScale


def silu_and_mul(gate_up: torch.Tensor, row_scale: RowScale | None = None) -> torch.Tensor:
    """See `pillion.kernels.silu_and_mul.silu_and_mul`."""
    if row_scale is not None:
        gate_up = (gate_up * row_scale.factors()[:, None]).to(gate_up.dtype)
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate).mul_(up)
