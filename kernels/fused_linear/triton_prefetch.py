"""Asking for weights before the launch before has ended: they don't depend on it."""

import triton
import triton.language as tl


@triton.jit
def prefetch_rows(w_ptr, n, last_n, begin, k, length, BLOCK_N: tl.constexpr):
    """Has `length` numbers from column `begin` on of rows n of a weight [last_n + 1, k] brought into the L2 cache.

    Numbers have 16 bits, n is [BLOCK_N] of rows, and length a multiple of 128. Compute capability 9.0 and up.
    """
    # About as many as a program has threads, each of at least 16 bytes.
    PIECES: tl.constexpr = 16 if BLOCK_N < 8 else (128 // BLOCK_N if BLOCK_N < 128 else 1)
    piece = length // PIECES
    start = tl.minimum(begin + tl.arange(0, PIECES) * piece, k - piece)
    at = w_ptr + tl.minimum(n, last_n)[:, None].to(tl.int64) * k + start[None, :]
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
        "=r,l,r",
        [at.to(tl.int64), piece * 2],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
