"""Elementwise, in float32 between load and store."""

import torch
import triton
import triton.language as tl

_BLOCK = 1024


@triton.jit
def _silu_and_mul_kernel(gate_up_ptr, out_ptr, ffn, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = d < ffn
    gate = tl.load(gate_up_ptr + row * stride + d, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * stride + ffn + d, mask=mask, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * ffn + d, y.to(out_ptr.dtype.element_ty), mask=mask)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `pillion.kernels.silu_and_mul.silu_and_mul`."""
    num_rows, width = gate_up.shape
    out = torch.empty((num_rows, width // 2), dtype=gate_up.dtype, device=gate_up.device)
    if num_rows:
        _silu_and_mul_kernel[(num_rows, triton.cdiv(width // 2, _BLOCK))](
            gate_up, out, width // 2, gate_up.stride(0), BLOCK=_BLOCK
        )
    return out
