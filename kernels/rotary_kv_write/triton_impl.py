"""One program per token and eight heads: rotates q and k, and stores k and v where they belong."""

import torch
import triton
import triton.language as tl

from pillion.kernels.rms_norm.row_scale import RowScale, padded_parts
from pillion.kernels.rms_norm.triton_row_scale import row_factor

_HEADS = 8


@triton.jit
def _rotary_kv_write_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    cos_sin_ptr,
    kv_ptr,
    slot_mapping_ptr,
    out_ptr,
    rotated_k_ptr,
    squares_ptr,
    q_stride,
    k_stride,
    v_stride,
    cos_sin_stride,
    kv_block_stride,
    kv_half_stride,
    kv_head_stride,
    num_parts,
    width,
    eps,
    NUM_Q_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    HEADS: tl.constexpr,
    PARTS: tl.constexpr,
    KEEP_K: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    kv_head = head - NUM_Q_HEADS
    d = tl.arange(0, DIM)[None, :]
    inside = d < HEAD_DIM
    # Element d of a rotated head needs its partner, half of the rotary dimension away.
    first = d < HALF
    rotated = d < 2 * HALF
    partner = tl.where(first, d + HALF, tl.where(rotated, d - HALF, d))
    angle = cos_sin_ptr + token * cos_sin_stride + tl.where(first, d, d - HALF)
    cos = tl.load(angle, mask=rotated, other=1.0)
    sin = tl.load(angle + HALF, mask=rotated, other=0.0)
    sin = tl.where(first, -sin, sin)
    if PARTS > 0:
        factor = row_factor(squares_ptr, token, tl.num_programs(0), num_parts, width, eps, PARTS)
        cos = cos * factor
        sin = sin * factor
    is_q = inside & (head < NUM_Q_HEADS)
    source = q_ptr + token * q_stride + head * HEAD_DIM
    x = tl.load(source + d, mask=is_q, other=0.0).to(tl.float32)
    y = tl.load(source + partner, mask=is_q, other=0.0).to(tl.float32)
    at = out_ptr + (token * NUM_Q_HEADS + head) * HEAD_DIM + d
    tl.store(at, (x * cos + y * sin).to(out_ptr.dtype.element_ty), mask=is_q)
    slot = tl.load(slot_mapping_ptr + token)
    num_stored = tl.where(slot >= 0, NUM_KV_HEADS, 0)
    is_kv = inside & (kv_head >= 0) & (kv_head < num_stored)
    is_read = inside & (kv_head >= 0) & (kv_head < NUM_KV_HEADS) if KEEP_K else is_kv
    source = k_ptr + token * k_stride + kv_head * HEAD_DIM
    x = tl.load(source + d, mask=is_read, other=0.0).to(tl.float32)
    y = tl.load(source + partner, mask=is_read, other=0.0).to(tl.float32)
    if KEEP_K:
        at = rotated_k_ptr + (token * NUM_KV_HEADS + kv_head) * HEAD_DIM + d
        tl.store(at, (x * cos + y * sin).to(rotated_k_ptr.dtype.element_ty), mask=is_read)
    v = tl.load(v_ptr + token * v_stride + kv_head * HEAD_DIM + d, mask=is_kv, other=0.0)
    if PARTS > 0:
        v = v.to(tl.float32) * factor
    at = kv_ptr + (slot // BLOCK_SIZE) * kv_block_stride + kv_head * kv_head_stride
    at += (slot % BLOCK_SIZE) * HEAD_DIM + d
    tl.store(at, (x * cos + y * sin).to(kv_ptr.dtype.element_ty), mask=is_kv)
    tl.store(at + kv_half_stride, v.to(kv_ptr.dtype.element_ty), mask=is_kv)


def rotary_kv_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor,
    layer_kv: torch.Tensor,
    slot_mapping: torch.Tensor,
    row_scale: RowScale | None = None,
    rotated_k: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `pillion.kernels.rotary_kv_write.rotary_kv_write`."""
    num_tokens, num_q_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    out = torch.empty((num_tokens, num_q_heads, head_dim), dtype=q.dtype, device=q.device)
    squares, width, eps = row_scale or (None, 1, 0.0)
    num_parts = 0 if squares is None else len(squares)
    if num_tokens:
        num_groups = triton.cdiv(num_q_heads + num_kv_heads, _HEADS)
        _rotary_kv_write_kernel[(num_tokens, num_groups)](
            q,
            k,
            v,
            cos_sin,
            layer_kv,
            slot_mapping,
            out,
            rotated_k,
            squares,
            q.stride(0),
            k.stride(0),
            v.stride(0),
            cos_sin.stride(0),
            layer_kv.stride(0),
            layer_kv.stride(1),
            layer_kv.stride(2),
            num_parts,
            width,
            eps,
            NUM_Q_HEADS=num_q_heads,
            NUM_KV_HEADS=num_kv_heads,
            HEAD_DIM=head_dim,
            HALF=cos_sin.shape[-1],
            BLOCK_SIZE=layer_kv.shape[3],
            DIM=triton.next_power_of_2(head_dim),
            HEADS=_HEADS,
            PARTS=0 if squares is None else padded_parts(squares),
            KEEP_K=rotated_k is not None,
            num_warps=2,
        )
    return out
