"""One program per row, which stays in registers between the two passes over it."""

import torch
import triton
import triton.language as tl


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    total_ptr,
    x_stride,
    eps,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    mask = d < N
    x = tl.load(x_ptr + row * x_stride + d, mask=mask, other=0.0)
    if ADD:
        x = x + tl.load(residual_ptr + row * N + d, mask=mask, other=0.0)
        tl.store(total_ptr + row * N + d, x, mask=mask)
    x32 = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x32 * x32, axis=0) / N + eps)
    weight = tl.load(weight_ptr + d, mask=mask, other=0.0)
    y = (x32 * scale).to(x.dtype) * weight
    tl.store(out_ptr + row * N + d, y, mask=mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `pillion.kernels.rms_norm.rms_norm`."""
    rows = x if x.dim() == 2 and x.stride(1) == 1 else x.reshape(-1, x.shape[-1])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(rows, None, weight, out, None, eps)
    return out


def rms_norm_add(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `pillion.kernels.rms_norm.rms_norm_add`."""
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    _launch(x, residual, weight, out, total, eps)
    return out, total


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    out: torch.Tensor,
    total: torch.Tensor | None,
    eps: float,
) -> None:
    num_rows, size = x.shape
    if num_rows == 0:
        return
    block = triton.next_power_of_2(size)
    _rms_norm_kernel[(num_rows,)](
        x,
        residual,
        weight,
        out,
        total,
        x.stride(0),
        eps,
        N=size,
        BLOCK=block,
        ADD=residual is not None,
        num_warps=min(16, max(1, block // 512)),
    )
