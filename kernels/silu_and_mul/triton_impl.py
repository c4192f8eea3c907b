"""Elementwise, in float32 between load and store."""

import torch
import triton
import triton.language as tl

from pillion.kernels.rms_norm.row_scale import RowScale, padded_parts
from pillion.kernels.rms_norm.triton_row_scale import row_factor

_BLOCK = 1024


@triton.jit
def _silu_and_mul_kernel(
    gate_up_ptr,
    out_ptr,
    squares_ptr,
    ffn,
    stride,
    num_parts,
    width,
    eps,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = d < ffn
    gate = tl.load(gate_up_ptr + row * stride + d, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * stride + ffn + d, mask=mask, other=0.0).to(tl.float32)
    if PARTS > 0:
        factor = row_factor(squares_ptr, row, tl.num_programs(0), num_parts, width, eps, PARTS)
        gate = gate * factor
        up = up * factor
    y = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * ffn + d, y.to(out_ptr.dtype.element_ty), mask=mask)


def silu_and_mul(gate_up: torch.Tensor, row_scale: RowScale | None = None) -> torch.Tensor:
    """See `pillion.kernels.silu_and_mul.silu_and_mul`."""
    num_rows, width = gate_up.shape
    out = torch.empty((num_rows, width // 2), dtype=gate_up.dtype, device=gate_up.device)
    squares, norm_width, eps = row_scale or (None, 1, 0.0)
    num_parts = 0 if squares is None else len(squares)
    if num_rows:
        _silu_and_mul_kernel[(num_rows, triton.cdiv(width // 2, _BLOCK))](
            gate_up,
            out,
            squares,
            width // 2,
            gate_up.stride(0),
            num_parts,
            norm_width,
            eps,
            BLOCK=_BLOCK,
            PARTS=0 if squares is None else padded_parts(squares),
        )
    return out
