"""What follows the sums of a product on a `Scaled` stream: division, gate, bias, rotation, and where results go."""

import triton
import triton.language as tl


@triton.jit
def load_squares(squares_ptr, rows, num_rows, num_parts, PARTS: tl.constexpr):
    """The parts of the sums of squares of some rows, [PARTS, ROWS]."""
    part = tl.arange(0, PARTS)
    return tl.load(
        squares_ptr + part[:, None] * num_rows + rows[None, :],
        mask=(part < num_parts)[:, None] & (rows < num_rows)[None, :],
        other=0.0,
    )


@triton.jit
def finish_linear(
    acc1,
    acc2,
    squares,
    bias_ptr,
    residual_ptr,
    gain_ptr,
    out_ptr,
    scaled_ptr,
    out_squares_ptr,
    rows,
    n_tile,
    num_rows,
    n_out,
    k,
    out_stride,
    eps,
    BLOCK_N: tl.constexpr,
    PARTS: tl.constexpr,
    GATED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BIAS: tl.constexpr,
    SCALED: tl.constexpr,
):
    """From the sums of one tile to out, as `wide_linear_kernel` says."""
    n = n_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    y = acc1
    if PARTS > 0:
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


@triton.jit
def finish_qkv(
    acc1,
    acc2,
    squares,
    bias_ptr,
    cos_sin_ptr,
    slot_mapping_ptr,
    q_ptr,
    kv_ptr,
    rows,
    n1,
    num_rows,
    k,
    kv_block_stride,
    kv_half_stride,
    kv_head_stride,
    num_q_heads,
    num_kv_heads,
    eps,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BIAS: tl.constexpr,
):
    """From the sums of one tile to queries, keys and values, as `wide_qkv_kernel` says."""
    HALF: tl.constexpr = HEAD_DIM // 2
    WHOLE: tl.constexpr = BLOCK_N >= HEAD_DIM
    PAIRS: tl.constexpr = BLOCK_N // 2 if WHOLE else BLOCK_N
    num_heads = num_q_heads + 2 * num_kv_heads
    if WHOLE:
        y1, y2 = _halves(acc1, BLOCK_N // HEAD_DIM, HALF, ROWS)
    else:
        y1 = acc1
        y2 = acc2
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
