"""The specification in torch, and the CPU path."""

from functools import cache

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `pillion.kernels.rms_norm.rms_norm`."""
    x32 = x.float()
    # One pass over x and two operations on single numbers per row. On the CPU this takes half the time
    # of torch.nn.functional.rms_norm for one row, and a fraction of it for many.
    norm: torch.Tensor = torch.linalg.vector_norm(x32, dim=-1, keepdim=True)
    scale = torch.addcmul(_constant(eps, x.device), norm, norm, value=1.0 / x.shape[-1]).rsqrt_()
    return (x32 * scale).to(weight.dtype).mul_(weight)


def rms_norm_add(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `pillion.kernels.rms_norm.rms_norm_add`."""
    total = residual.add_(x)
    return rms_norm(total, weight, eps), total


@cache
def _constant(value: float, device: torch.device) -> torch.Tensor:
    """[] float32; made once, as making it costs as much as using it."""
    return torch.tensor(value, dtype=torch.float32, device=device)
