"""The factor of one row, for kernels with a program per row."""

import triton
import triton.language as tl


@triton.jit
def row_factor(squares_ptr, row, num_rows, num_parts, width, eps, PARTS: tl.constexpr):
    """See `RowScale`; PARTS is a power of two of at least num_parts."""
    part = tl.arange(0, PARTS)
    squares = tl.load(squares_ptr + part * num_rows + row, mask=part < num_parts, other=0.0)
    return tl.rsqrt(tl.sum(squares, axis=0) / width + eps)
