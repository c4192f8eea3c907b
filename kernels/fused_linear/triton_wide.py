"""Products whose tiles go from memory to the tensor cores untouched.

The norm in front is made by others: who wrote the residual stream has multiplied it by the norm's gain and summed
its squares in parts (see `Scaled`), so only finished rows have to be scaled. Tiles are fetched by the copy engine.
Where a weight has too few tiles to keep all multiprocessors reading, K is split; the program that finishes last for
its tile sums the splits in their order. Weights don't depend on the launch before, so a program asks for its first
ones before it waits for that launch. The launch behind is let in at once, to do the same, or behind the main loop.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pillion.kernels.fused_linear.triton_prefetch import prefetch_rows
from pillion.kernels.fused_linear.triton_wide_ends import finish_linear, finish_qkv, load_squares


@triton.jit
def _begin(
    w_ptr,
    n1,
    n2,
    last_n,
    split,
    k,
    prefetch,
    early,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    TWO: tl.constexpr,
    PDL: tl.constexpr,
):
    """Waits for the launch before, if need be. The K that this split begins and ends with."""
    length = tl.cdiv(tl.cdiv(k, BLOCK_K), SPLITS) * BLOCK_K
    begin = split * length
    if PDL:
        if prefetch > 0:
            lanes = tl.arange(0, BLOCK_N)
            prefetch_rows(w_ptr, n1 + lanes, last_n, begin, k, prefetch, BLOCK_N)
            if TWO:
                prefetch_rows(w_ptr, n2 + lanes, last_n, begin, k, prefetch, BLOCK_N)
        gdc_wait()
        if early:
            gdc_launch_dependents()
    return begin, tl.minimum(begin + length, k)


@triton.jit
def _product(
    x_desc,
    w_desc,
    row,
    n1,
    n2,
    begin,
    end,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    TWO: tl.constexpr,
):
    """The rows from n1 (and n2) of w times the rows from `row` of x, between begin and end: two [BLOCK_N, ROWS]."""
    acc1 = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)
    acc2 = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)
    for at in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        w1 = w_desc.load([n1, at])
        x = x_desc.load([row, at])
        acc1 = tl.dot(w1, x.T, acc1)
        if TWO:
            w2 = w_desc.load([n2, at])
            acc2 = tl.dot(w2, x.T, acc2)
    return acc1, acc2


@triton.jit
def _is_last(
    acc1,
    acc2,
    scratch_ptr,
    arrivals_ptr,
    tile,
    split,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    TWO: tl.constexpr,
):
    """Leaves one split's sums to the program that comes last for this tile: whether this is the one."""
    SIZE: tl.constexpr = BLOCK_N * ROWS
    PRODUCTS: tl.constexpr = 2 if TWO else 1
    inside = tl.arange(0, BLOCK_N)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    at = scratch_ptr + (tile.to(tl.int64) * SPLITS + split) * (PRODUCTS * SIZE) + inside
    tl.store(at, acc1)
    if TWO:
        tl.store(at + SIZE, acc2)
    tl.debug_barrier()  # all threads' stores come before the one thread's arrival
    arrived = tl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel")
    return arrived == SPLITS - 1


@triton.jit
def _sum_splits(
    scratch_ptr,
    tile,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    TWO: tl.constexpr,
):
    """The sums over all of K, in the order of the splits."""
    SIZE: tl.constexpr = BLOCK_N * ROWS
    PRODUCTS: tl.constexpr = 2 if TWO else 1
    inside = tl.arange(0, BLOCK_N)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    at = scratch_ptr + tile.to(tl.int64) * (SPLITS * PRODUCTS * SIZE) + inside
    acc1 = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)
    acc2 = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        part = at + split * (PRODUCTS * SIZE)
        acc1 += tl.load(part, cache_modifier=".cg")
        if TWO:
            acc2 += tl.load(part + SIZE, cache_modifier=".cg")
    return acc1, acc2


@triton.jit(do_not_specialize=["num_rows", "num_parts", "prefetch", "early"])
def wide_linear_kernel(
    x_desc,
    w_desc,
    w_ptr,
    squares_ptr,
    bias_ptr,
    residual_ptr,
    gain_ptr,
    out_ptr,
    scaled_ptr,
    out_squares_ptr,
    scratch_ptr,
    arrivals_ptr,
    num_rows,
    num_parts,
    n_out,
    k,
    out_stride,
    prefetch,
    early,
    eps,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
    GATED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    PDL: tl.constexpr,
):
    """out = y (+ bias) (+ residual), or silu(g) * u, with y, or g and u, = the scaled rows of x @ w.T.

    With SCALED also out times a gain, and the sums of out's squares over this program's columns.
    """
    row_block = tl.program_id(0)
    n_tile = tl.program_id(1)
    split = tl.program_id(2)
    n1 = n_tile * BLOCK_N
    last_n = n_out * (2 if GATED else 1) - 1
    begin, end = _begin(
        w_ptr, n1, n1 + n_out, last_n, split, k, prefetch, early,
        BLOCK_N, BLOCK_K, SPLITS, GATED, PDL,
    )  # fmt: skip
    rows = row_block * ROWS + tl.arange(0, ROWS)
    # Few rows' squares are read ahead, while the tiles come; those of many would take the product's registers.
    if PARTS > 0 and ROWS <= 64:
        squares = load_squares(squares_ptr, rows, num_rows, num_parts, PARTS)
    acc1, acc2 = _product(
        x_desc, w_desc, row_block * ROWS, n1, n1 + n_out, begin, end,
        ROWS, BLOCK_N, BLOCK_K, STAGES, GATED,
    )  # fmt: skip
    if PDL:  # again, if it was early
        gdc_launch_dependents()
    if SPLITS > 1:
        tile = n_tile * tl.num_programs(0) + row_block
        last = _is_last(
            acc1, acc2, scratch_ptr, arrivals_ptr, tile, split, ROWS, BLOCK_N, SPLITS, GATED
        )
        if not last:
            return
        tl.store(arrivals_ptr + tile, 0)
        acc1, acc2 = _sum_splits(scratch_ptr, tile, ROWS, BLOCK_N, SPLITS, GATED)
    if PARTS > 0:
        if ROWS > 64:
            squares = load_squares(squares_ptr, rows, num_rows, num_parts, PARTS)
    else:
        squares = 0.0
    finish_linear(
        acc1, acc2, squares, bias_ptr, residual_ptr, gain_ptr, out_ptr, scaled_ptr, out_squares_ptr,
        rows, n_tile, num_rows, n_out, k, out_stride, eps,
        BLOCK_N, PARTS, GATED, RESIDUAL, BIAS, SCALED,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=["num_rows", "num_parts", "num_q_heads", "num_kv_heads", "prefetch", "early"]
)
def wide_qkv_kernel(
    x_desc,
    w_desc,
    w_ptr,
    squares_ptr,
    bias_ptr,
    cos_sin_ptr,
    slot_mapping_ptr,
    q_ptr,
    kv_ptr,
    scratch_ptr,
    arrivals_ptr,
    num_rows,
    num_parts,
    k,
    kv_block_stride,
    kv_half_stride,
    kv_head_stride,
    num_q_heads,
    num_kv_heads,
    prefetch,
    early,
    eps,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    PDL: tl.constexpr,
):
    """q, k, v = the scaled rows of x @ w.T; rotates q and k, writes q out and k, v straight into the KV cache.

    A program owns BLOCK_N columns of the first half of a head and their partners in the second half, or
    whole heads.
    """
    HALF: tl.constexpr = HEAD_DIM // 2
    WHOLE: tl.constexpr = BLOCK_N >= HEAD_DIM
    PER_HALF: tl.constexpr = 1 if WHOLE else HALF // BLOCK_N
    num_heads = num_q_heads + 2 * num_kv_heads
    row_block = tl.program_id(0)
    n_tile = tl.program_id(1)
    split = tl.program_id(2)
    n1 = n_tile * BLOCK_N
    if not WHOLE:
        n1 = n_tile // PER_HALF * HEAD_DIM + n_tile % PER_HALF * BLOCK_N
    begin, end = _begin(
        w_ptr, n1, n1 + HALF, num_heads * HEAD_DIM - 1, split, k, prefetch, early,
        BLOCK_N, BLOCK_K, SPLITS, not WHOLE, PDL,
    )  # fmt: skip
    rows = row_block * ROWS + tl.arange(0, ROWS)
    if ROWS <= 64:
        squares = load_squares(squares_ptr, rows, num_rows, num_parts, PARTS)
    acc1, acc2 = _product(
        x_desc, w_desc, row_block * ROWS, n1, n1 + HALF, begin, end,
        ROWS, BLOCK_N, BLOCK_K, STAGES, not WHOLE,
    )  # fmt: skip
    if PDL:  # again, if it was early
        gdc_launch_dependents()
    if SPLITS > 1:
        tile = n_tile * tl.num_programs(0) + row_block
        last = _is_last(
            acc1, acc2, scratch_ptr, arrivals_ptr, tile, split, ROWS, BLOCK_N, SPLITS, not WHOLE
        )
        if not last:
            return
        tl.store(arrivals_ptr + tile, 0)
        acc1, acc2 = _sum_splits(scratch_ptr, tile, ROWS, BLOCK_N, SPLITS, not WHOLE)
    if ROWS > 64:
        squares = load_squares(squares_ptr, rows, num_rows, num_parts, PARTS)
    finish_qkv(
        acc1, acc2, squares, bias_ptr, cos_sin_ptr, slot_mapping_ptr, q_ptr, kv_ptr,
        rows, n1, num_rows, k, kv_block_stride, kv_half_stride, kv_head_stride,
        num_q_heads, num_kv_heads, eps,
        HEAD_DIM, BLOCK_SIZE, ROWS, BLOCK_N, BIAS,
    )  # fmt: skip
