"""Products of a few rows with a weight matrix, with what stands around them fused in.

At decode time a product reads every weight once for a few rows, so it costs what reading costs. Each
program owns BLOCK_N output columns of ROWS rows and walks along K; nothing is reduced between programs. The root mean
square of the input is summed on the way (it scales the finished product), so a norm in front costs no pass of
its own. With programmatic dependent launch a kernel is set up while the one before finishes.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pillion.kernels.fused_linear.triton_prefetch import prefetch_rows


@triton.jit
def _accumulate(acc, x_tile, w_tile, ROWS: tl.constexpr):
    """acc += w_tile @ x_tile.T: single products [BLOCK_N, BLOCK_K] for one row, [BLOCK_N, ROWS] otherwise."""
    if ROWS == 1:
        return acc + w_tile.to(tl.float32) * x_tile[None, :]
    else:
        return tl.dot(w_tile, x_tile.T, acc)


@triton.jit
def _finish(acc, ROWS: tl.constexpr):
    """The product, [BLOCK_N, ROWS]."""
    if ROWS == 1:
        return tl.sum(acc, axis=1)[:, None]
    else:
        return acc


@triton.jit
def _load_x(
    x_ptr,
    gain_ptr,
    rows,
    offs_k,
    num_rows,
    x_stride,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
):
    """One K tile of the input (float32 for one row, else the input's dtype) and its sum of squares."""
    k_mask = offs_k < K
    if ROWS == 1:
        x = tl.load(x_ptr + offs_k, mask=k_mask, other=0.0).to(tl.float32)
        squares = x * x
        if NORM:
            x = x * tl.load(gain_ptr + offs_k, mask=k_mask, other=0.0).to(tl.float32)
        return x, squares
    else:
        x = tl.load(
            x_ptr + rows[:, None].to(tl.int64) * x_stride + offs_k[None, :],
            mask=(rows[:, None] < num_rows) & k_mask[None, :],
            other=0.0,
        )
        x32 = x.to(tl.float32)
        squares = tl.sum(x32 * x32, axis=1)
        if NORM:
            gain = tl.load(gain_ptr + offs_k, mask=k_mask, other=0.0).to(tl.float32)
            x = (x32 * gain[None, :]).to(x.dtype)
        return x, squares


@triton.jit
def _products(
    x_ptr,
    w_ptr,
    n1,
    n2,
    last_n,
    gain_ptr,
    rows,
    n_mask,
    num_rows,
    x_stride,
    prefetch,
    early,
    eps,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    NORM: tl.constexpr,
    TWO: tl.constexpr,
    PDL: tl.constexpr,
):
    """norm(x) with one or two tiles of weight rows: two [BLOCK_N, ROWS] float32 tiles."""
    lanes = tl.arange(0, BLOCK_K)
    w1_row = w_ptr + n1[:, None].to(tl.int64) * K
    w2_row = w_ptr + n2[:, None].to(tl.int64) * K
    if ROWS == 1:
        acc1 = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
        acc2 = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
        squares = tl.zeros((BLOCK_K,), dtype=tl.float32)
    else:
        acc1 = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)
        acc2 = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)
        squares = tl.zeros((ROWS,), dtype=tl.float32)
    if PDL:
        if prefetch > 0:
            prefetch_rows(w_ptr, n1, last_n, 0, K, prefetch, BLOCK_N)
            if TWO:
                prefetch_rows(w_ptr, n2, last_n, 0, K, prefetch, BLOCK_N)
        gdc_wait()
        if early:
            gdc_launch_dependents()
    for k0 in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        offs_k = k0 + lanes
        mask = n_mask[:, None] & (offs_k < K)[None, :]
        w1 = tl.load(w1_row + offs_k[None, :], mask=mask, other=0.0)
        x, sq = _load_x(x_ptr, gain_ptr, rows, offs_k, num_rows, x_stride, K, ROWS, NORM)
        acc1 = _accumulate(acc1, x, w1, ROWS)
        if TWO:
            w2 = tl.load(w2_row + offs_k[None, :], mask=mask, other=0.0)
            acc2 = _accumulate(acc2, x, w2, ROWS)
        if NORM:
            squares += sq
    if PDL:  # again, if it was early
        gdc_launch_dependents()
    y1 = _finish(acc1, ROWS)
    y2 = y1
    if TWO:
        y2 = _finish(acc2, ROWS)
    if NORM:
        if ROWS == 1:
            scale = tl.rsqrt(tl.sum(squares, axis=0) / K + eps)
        else:
            scale = tl.rsqrt(squares / K + eps)[None, :]
        y1 = y1 * scale
        y2 = y2 * scale
    return y1, y2


@triton.jit(do_not_specialize=["num_rows", "prefetch", "early"])
def skinny_linear_kernel(
    x_ptr,
    w_ptr,
    gain_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    num_rows,
    n_out,
    x_stride,
    out_stride,
    prefetch,
    early,
    eps,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PDL: tl.constexpr,
):
    """out = y (+ bias) (+ residual), or silu(g) * u, with y, or g and u, = norm(x) @ w.T."""
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    n_mask = offs_n < n_out
    last_n = n_out * (2 if GATED else 1) - 1
    y, u = _products(
        x_ptr, w_ptr, offs_n, offs_n + n_out, last_n, gain_ptr, rows, n_mask, num_rows, x_stride,
        prefetch, early, eps,
        K, ROWS, BLOCK_N, BLOCK_K, STAGES, NORM, GATED, PDL,
    )  # fmt: skip
    if GATED:
        y = y * tl.sigmoid(y) * u
    at = rows[None, :].to(tl.int64) * out_stride + offs_n[:, None]
    mask = (rows[None, :] < num_rows) & n_mask[:, None]
    if BIAS:
        y += tl.load(bias_ptr + offs_n, mask=n_mask, other=0.0).to(tl.float32)[:, None]
    if RESIDUAL:
        y += tl.load(residual_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows", "prefetch", "early"])
def skinny_qkv_kernel(
    x_ptr,
    w_ptr,
    gain_ptr,
    bias_ptr,
    cos_sin_ptr,
    slot_mapping_ptr,
    q_ptr,
    kv_ptr,
    num_rows,
    x_stride,
    q_stride,
    kv_block_stride,
    kv_half_stride,
    kv_head_stride,
    prefetch,
    early,
    eps,
    K: tl.constexpr,
    NUM_Q_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    BIAS: tl.constexpr,
    PDL: tl.constexpr,
):
    """q, k, v = norm(x) @ w.T; rotates q and k, writes q out and k, v straight into the KV cache.

    A program owns BLOCK_H columns of the first half of a head and their partners in the second half.
    """
    HALF: tl.constexpr = HEAD_DIM // 2
    PER_HEAD: tl.constexpr = (HALF + BLOCK_H - 1) // BLOCK_H
    pid = tl.program_id(0)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    head = pid // PER_HEAD
    j = (pid % PER_HEAD) * BLOCK_H + tl.arange(0, BLOCK_H)
    j_mask = j < HALF
    n1 = head * HEAD_DIM + j
    last_n = (NUM_Q_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM - 1
    y1, y2 = _products(
        x_ptr, w_ptr, n1, n1 + HALF, last_n, gain_ptr, rows, j_mask, num_rows, x_stride,
        prefetch, early, eps,
        K, ROWS, BLOCK_H, BLOCK_K, STAGES, True, True, PDL,
    )  # fmt: skip
    row_mask = rows < num_rows
    if BIAS:
        y1 += tl.load(bias_ptr + n1, mask=j_mask, other=0.0).to(tl.float32)[:, None]
        y2 += tl.load(bias_ptr + n1 + HALF, mask=j_mask, other=0.0).to(tl.float32)[:, None]
    mask = row_mask[None, :] & j_mask[:, None]
    if head < NUM_Q_HEADS + NUM_KV_HEADS:
        at = cos_sin_ptr + rows[None, :] * HEAD_DIM + j[:, None]
        cos = tl.load(at, mask=mask, other=0.0)
        sin = tl.load(at + HALF, mask=mask, other=0.0)
        rotated = y1 * cos - y2 * sin
        y2 = y2 * cos + y1 * sin
        y1 = rotated
    if head < NUM_Q_HEADS:
        at = q_ptr + rows[None, :].to(tl.int64) * q_stride + n1[:, None]
        tl.store(at, y1.to(q_ptr.dtype.element_ty), mask=mask)
        tl.store(at + HALF, y2.to(q_ptr.dtype.element_ty), mask=mask)
    else:
        is_value = (head - NUM_Q_HEADS) // NUM_KV_HEADS
        kv_head = (head - NUM_Q_HEADS) % NUM_KV_HEADS
        slot = tl.load(slot_mapping_ptr + rows, mask=row_mask, other=-1).to(tl.int64)
        at = (
            kv_ptr
            + (slot // BLOCK_SIZE)[None, :] * kv_block_stride
            + is_value * kv_half_stride
            + kv_head * kv_head_stride
            + (slot % BLOCK_SIZE)[None, :] * HEAD_DIM
            + j[:, None]
        )
        mask = mask & (slot >= 0)[None, :]
        tl.store(at, y1.to(kv_ptr.dtype.element_ty), mask=mask)
        tl.store(at + HALF, y2.to(kv_ptr.dtype.element_ty), mask=mask)
