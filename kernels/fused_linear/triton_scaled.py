"""A residual stream as products without a norm of their own take it (see `Scaled`)."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def scaled_kernel(
    x_ptr,
    gain_ptr,
    scaled_ptr,
    squares_ptr,
    x_stride,
    width,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """A row times the gain, and the sum of its squares."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    mask = d < width
    gain = tl.load(gain_ptr + d, mask=mask, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    x = tl.load(x_ptr + row * x_stride + d, mask=mask, other=0.0).to(tl.float32)
    tl.store(scaled_ptr + row * width + d, (x * gain).to(scaled_ptr.dtype.element_ty), mask=mask)
    tl.store(squares_ptr + row, tl.sum(x * x, axis=0))
