"""Products whose tiles go from memory to the tensor cores untouched.

The norm in front is made by others: who wrote the residual stream has multiplied it by the norm's gain and summed
its squares in parts (see `Scaled`), so only finished rows have to be scaled. Tiles are fetched by the copy engine.
Where a weight has too few tiles to keep all multiprocessors reading, K is split; the program that finishes last for
its tile sums the splits in their order. Weights don't depend on the launch before, so a program asks for its first
ones before it waits for that launch, and lets the launch behind do the same at once.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pillion.kernels.fused_linear.triton_prefetch import prefetch_rows


@triton.jit
def _begin(
    w_ptr,
    n1,
    n2,
    last_n,
    split,
    k,
    prefetch,
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


@triton.jit
def _load_squares(squares_ptr, rows, num_rows, num_parts, PARTS: tl.constexpr):
    """The parts of the sums of squares of some rows, [PARTS, ROWS]."""
    part = tl.arange(0, PARTS)
    return tl.load(
        squares_ptr + part[:, None] * num_rows + rows[None, :],
        mask=(part < num_parts)[:, None] & (rows < num_rows)[None, :],
        other=0.0,
    )


@triton.jit(do_not_specialize=["num_rows", "num_parts", "prefetch"])
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
        w_ptr, n1, n1 + n_out, last_n, split, k, prefetch, BLOCK_N, BLOCK_K, SPLITS, GATED, PDL
    )
    rows = row_block * ROWS + tl.arange(0, ROWS)
    # Few rows' squares are read ahead, while the tiles come; those of many would take the product's registers.
    if PARTS > 0 and ROWS <= 64:
        squares = _load_squares(squares_ptr, rows, num_rows, num_parts, PARTS)
    acc1, acc2 = _product(
        x_desc, w_desc, row_block * ROWS, n1, n1 + n_out, begin, end,
        ROWS, BLOCK_N, BLOCK_K, STAGES, GATED,
    )  # fmt: skip
    if SPLITS > 1:
        tile = n_tile * tl.num_programs(0) + row_block
        last = _is_last(
            acc1, acc2, scratch_ptr, arrivals_ptr, tile, split, ROWS, BLOCK_N, SPLITS, GATED
        )
        if not last:
            return
        tl.store(arrivals_ptr + tile, 0)
        acc1, acc2 = _sum_splits(scratch_ptr, tile, ROWS, BLOCK_N, SPLITS, GATED)
    n = n1 + tl.arange(0, BLOCK_N)
    y = acc1
    if PARTS > 0:
        if ROWS > 64:
            squares = _load_squares(squares_ptr, rows, num_rows, num_parts, PARTS)
        scale = tl.rsqrt(tl.sum(squares, axis=0) / k + eps)[None, :]
        y = y * scale
    if GATED:
        y = y * tl.sigmoid(y) * (acc2 * scale)
    n_mask = n < n_out
    mask = (rows < num_rows)[None, :] & n_mask[:, None]
    at = rows[None, :].to(tl.int64) * out_stride + n[:, None]
    if BIAS:
        y += tl.load(bias_ptr + n, mask=n_mask, other=0.0).to(tl.float32)[:, None]
    if RESIDUAL:
        y += tl.load(residual_ptr + at, mask=mask, other=0.0).to(tl.float32)
    rounded = y.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at, rounded, mask=mask)
    if SCALED:
        stored = tl.where(mask, rounded.to(tl.float32), 0.0)
        gain = tl.load(gain_ptr + n, mask=n_mask, other=0.0).to(tl.float32)
        scaled_at = rows[None, :].to(tl.int64) * n_out + n[:, None]
        tl.store(
            scaled_ptr + scaled_at,
            (stored * gain[:, None]).to(scaled_ptr.dtype.element_ty),
            mask=mask,
        )
        sums = tl.sum(stored * stored, axis=0)
        tl.store(out_squares_ptr + n_tile * num_rows + rows, sums, mask=rows < num_rows)


@triton.jit
def _halves(acc, HEADS: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr):
    """Whole heads [HEADS * 2 * HALF, ROWS] as their first and second halves, each [HEADS * HALF, ROWS]."""
    pairs = tl.permute(tl.reshape(acc, (HEADS, 2, HALF, ROWS)), (0, 2, 3, 1))
    first, second = tl.split(pairs)
    return tl.reshape(first, (HEADS * HALF, ROWS)), tl.reshape(second, (HEADS * HALF, ROWS))


@triton.jit(do_not_specialize=["num_rows", "num_parts", "num_q_heads", "num_kv_heads", "prefetch"])
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
    PAIRS: tl.constexpr = BLOCK_N // 2 if WHOLE else BLOCK_N
    num_heads = num_q_heads + 2 * num_kv_heads
    row_block = tl.program_id(0)
    n_tile = tl.program_id(1)
    split = tl.program_id(2)
    n1 = n_tile * BLOCK_N
    if not WHOLE:
        n1 = n_tile // PER_HALF * HEAD_DIM + n_tile % PER_HALF * BLOCK_N
    begin, end = _begin(
        w_ptr, n1, n1 + HALF, num_heads * HEAD_DIM - 1, split, k, prefetch,
        BLOCK_N, BLOCK_K, SPLITS, not WHOLE, PDL,
    )  # fmt: skip
    rows = row_block * ROWS + tl.arange(0, ROWS)
    if ROWS <= 64:
        squares = _load_squares(squares_ptr, rows, num_rows, num_parts, PARTS)
    acc1, acc2 = _product(
        x_desc, w_desc, row_block * ROWS, n1, n1 + HALF, begin, end,
        ROWS, BLOCK_N, BLOCK_K, STAGES, not WHOLE,
    )  # fmt: skip
    if SPLITS > 1:
        tile = n_tile * tl.num_programs(0) + row_block
        last = _is_last(
            acc1, acc2, scratch_ptr, arrivals_ptr, tile, split, ROWS, BLOCK_N, SPLITS, not WHOLE
        )
        if not last:
            return
        tl.store(arrivals_ptr + tile, 0)
        acc1, acc2 = _sum_splits(scratch_ptr, tile, ROWS, BLOCK_N, SPLITS, not WHOLE)
    if WHOLE:
        y1, y2 = _halves(acc1, BLOCK_N // HEAD_DIM, HALF, ROWS)
    else:
        y1 = acc1
        y2 = acc2
    if ROWS > 64:
        squares = _load_squares(squares_ptr, rows, num_rows, num_parts, PARTS)
    scale = tl.rsqrt(tl.sum(squares, axis=0) / k + eps)[None, :]
    row_mask = rows < num_rows
    y1 = y1 * scale
    y2 = y2 * scale
    pair = tl.arange(0, PAIRS)
    head = n1 // HEAD_DIM + pair // HALF
    j = n1 % HEAD_DIM + pair % HALF
    n = head * HEAD_DIM + j
    there = head < num_heads
    if BIAS:
        y1 += tl.load(bias_ptr + n, mask=there, other=0.0).to(tl.float32)[:, None]
        y2 += tl.load(bias_ptr + n + HALF, mask=there, other=0.0).to(tl.float32)[:, None]
    angle = cos_sin_ptr + rows[None, :] * HEAD_DIM + j[:, None]
    turned = row_mask[None, :] & (head < num_q_heads + num_kv_heads)[:, None]
    cos = tl.load(angle, mask=turned, other=1.0)
    sin = tl.load(angle + HALF, mask=turned, other=0.0)
    rotated = y1 * cos - y2 * sin
    y2 = y2 * cos + y1 * sin
    y1 = rotated
    at = q_ptr + rows[None, :].to(tl.int64) * (num_q_heads * HEAD_DIM) + n[:, None]
    mask = row_mask[None, :] & (head < num_q_heads)[:, None]
    tl.store(at, y1.to(q_ptr.dtype.element_ty), mask=mask)
    tl.store(at + HALF, y2.to(q_ptr.dtype.element_ty), mask=mask)
    slot = tl.load(slot_mapping_ptr + rows, mask=row_mask, other=-1).to(tl.int64)
    is_value = (head - num_q_heads) // num_kv_heads
    at = (
        kv_ptr
        + (slot // BLOCK_SIZE * kv_block_stride + slot % BLOCK_SIZE * HEAD_DIM)[None, :]
        + (is_value * kv_half_stride + (head - num_q_heads) % num_kv_heads * kv_head_stride + j)[
            :, None
        ]
    )
    mask = (slot >= 0)[None, :] & (there & (head >= num_q_heads))[:, None]
    tl.store(at, y1.to(kv_ptr.dtype.element_ty), mask=mask)
    tl.store(at + HALF, y2.to(kv_ptr.dtype.element_ty), mask=mask)


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
