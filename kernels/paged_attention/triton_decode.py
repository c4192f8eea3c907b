"""Attention of one new token per row over its paged KV cache, split along the sequence.

A program owns one row, one KV head (with all query heads that share it) and one split of the row's blocks. The
program that finishes last for its row and head merges the splits, so there is no second kernel.
"""

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_LOG2_E = 1.4426950408889634
# Programs of a split launch at most; so many keep every multiprocessor of the largest cards at work.
_MOST_PROGRAMS, _ENOUGH_PROGRAMS = 1024, 132
_MAX_SPLITS = 32


@triton.jit
def decode_attention_kernel(
    q_ptr,
    kv_ptr,
    block_table_ptr,
    seq_lens_ptr,
    out_ptr,
    partial_ptr,
    stats_ptr,
    arrivals_ptr,
    scale_log2,
    q_stride,
    out_stride,
    table_stride,
    kv_block_stride,
    kv_half_stride,
    kv_head_stride,
    num_splits,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    WINDOW: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """out[row, head] = softmax(q k^T scale) v over the last WINDOW (0: all) positions; zeros if none."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    if PDL:
        gdc_wait()
    seq_len = tl.load(seq_lens_ptr + row)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(seq_len - WINDOW, 0)
    chunk = tl.cdiv(tl.cdiv(seq_len - first, num_splits), BLOCK_T) * BLOCK_T
    start = first + split * chunk
    end = tl.minimum(start + chunk, seq_len)
    g = tl.arange(0, 16)
    d = tl.arange(0, PADDED_DIM)
    g_mask = g < GROUP
    d_mask = d < HEAD_DIM
    head = kv_head * GROUP + g
    out_at = out_ptr + row.to(tl.int64) * out_stride + head[:, None] * HEAD_DIM + d[None, :]
    out_mask = g_mask[:, None] & d_mask[None, :]
    if seq_len == 0:
        if split == 0:
            tl.store(
                out_at, tl.zeros((16, PADDED_DIM), dtype=out_ptr.dtype.element_ty), mask=out_mask
            )
        return
    if start >= end:
        return
    q = tl.load(
        q_ptr + row.to(tl.int64) * q_stride + head[:, None] * HEAD_DIM + d[None, :],
        mask=out_mask,
        other=0.0,
    )
    top = tl.full((16,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((16,), dtype=tl.float32)
    acc = tl.zeros((16, PADDED_DIM), dtype=tl.float32)
    table = block_table_ptr + row.to(tl.int64) * table_stride
    k_base = kv_ptr + kv_head * kv_head_stride + d[None, :]
    lanes = tl.arange(0, BLOCK_T)
    for t0 in tl.range(start, end, BLOCK_T, num_stages=STAGES):
        t = t0 + lanes
        t_mask = t < end
        block = tl.load(table + t // BLOCK_SIZE, mask=t_mask, other=0).to(tl.int64)
        at = block[:, None] * kv_block_stride + (t % BLOCK_SIZE)[:, None] * HEAD_DIM
        kv_mask = t_mask[:, None] & d_mask[None, :]
        k = tl.load(k_base + at, mask=kv_mask, other=0.0)
        v = tl.load(k_base + kv_half_stride + at, mask=kv_mask, other=0.0)
        s = tl.dot(q, k.T, input_precision="ieee") * scale_log2
        s = tl.where(t_mask[None, :], s, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp2(s - new_top[:, None])
        keep = tl.exp2(top - new_top)
        total = total * keep + tl.sum(p, axis=1)
        acc = tl.dot(p.to(v.dtype), v, acc * keep[:, None], input_precision="ieee")
        top = new_top
    if PDL:
        gdc_launch_dependents()
    active = tl.cdiv(seq_len - first, chunk)
    if active == 1:
        tl.store(out_at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=out_mask)
        return
    pair = row * NUM_KV_HEADS + kv_head
    part = pair.to(tl.int64) * num_splits + split
    tl.store(partial_ptr + part * 16 * PADDED_DIM + g[:, None] * PADDED_DIM + d[None, :], acc)
    tl.store(stats_ptr + part * 32 + g, top)
    tl.store(stats_ptr + part * 32 + 16 + g, total)
    tl.debug_barrier()  # all threads' stores come before the one thread's arrival
    arrived = tl.atomic_add(arrivals_ptr + pair, 1, sem="acq_rel")
    if arrived != active - 1:
        return
    tl.store(arrivals_ptr + pair, 0)
    top = tl.full((16,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((16,), dtype=tl.float32)
    acc = tl.zeros((16, PADDED_DIM), dtype=tl.float32)
    for i in range(0, active):
        part = pair.to(tl.int64) * num_splits + i
        s_top = tl.load(stats_ptr + part * 32 + g, cache_modifier=".cg")
        s_total = tl.load(stats_ptr + part * 32 + 16 + g, cache_modifier=".cg")
        s_acc = tl.load(
            partial_ptr + part * 16 * PADDED_DIM + g[:, None] * PADDED_DIM + d[None, :],
            cache_modifier=".cg",
        )
        new_top = tl.maximum(top, s_top)
        keep = tl.exp2(top - new_top)
        add = tl.exp2(s_top - new_top)
        total = total * keep + s_total * add
        acc = acc * keep[:, None] + s_acc * add[:, None]
        top = new_top
    tl.store(out_at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=out_mask)


@functools.lru_cache
def _scratch(device: torch.device, dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Partial results, their statistics and arrival counters, for any launch with more than one split.

    Made once and never moved, because graphs keep their addresses. The counters return to zero by
    themselves at the end of each launch.
    """
    return (
        torch.empty(_MOST_PROGRAMS * 16 * dim, device=device),
        torch.empty(_MOST_PROGRAMS * 32, device=device),
        torch.zeros(_MOST_PROGRAMS, dtype=torch.int32, device=device),
    )


class Setting(NamedTuple):
    """How the work is cut: tokens per step of a program, its warps, loads in flight, splits of a sequence."""

    block_tokens: int
    warps: int
    stages: int
    splits: int


def best_setting(num_pairs: int) -> Setting:
    """For so many pairs of a row and a KV head: enough programs for the card, the same for every length.

    Near the best of `benchmarks/tune_decode_attention.py` on an H200, and what docs/benchmarks.md was measured with.
    """
    splits = 1
    while num_pairs * splits <= _ENOUGH_PROGRAMS and splits < _MAX_SPLITS:
        splits *= 2
    return Setting(64 if splits > 1 else 128, 4, 2, splits)


def decode_attention(
    q: torch.Tensor,
    layer_kv: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    sliding_window: int | None,
    pdl: bool = False,
    setting: Setting | None = None,
) -> None:
    """Attention of rows with one token each: q and out are [num_rows, num_q_heads, head_dim]. Writes: out."""
    num_rows, num_q_heads, head_dim = q.shape
    num_kv_heads = layer_kv.shape[2]
    dim = max(16, triton.next_power_of_2(head_dim))
    num_pairs = num_rows * num_kv_heads
    setting = setting or best_setting(num_pairs)
    if setting.splits > 1 and num_pairs * setting.splits > _MOST_PROGRAMS:
        raise ValueError(
            f"{num_pairs} pairs in {setting.splits} splits; at most {_MOST_PROGRAMS} programs"
        )
    partial, stats, arrivals = _scratch(q.device, dim)
    decode_attention_kernel[(num_rows, num_kv_heads, setting.splits)](
        q,
        layer_kv,
        block_table,
        seq_lens,
        out,
        partial,
        stats,
        arrivals,
        scale * _LOG2_E,
        q.stride(0),
        out.stride(0),
        block_table.stride(0),
        layer_kv.stride(0),
        layer_kv.stride(1),
        layer_kv.stride(2),
        setting.splits,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=num_q_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=dim,
        BLOCK_SIZE=layer_kv.shape[3],
        BLOCK_T=setting.block_tokens,
        WINDOW=sliding_window or 0,
        STAGES=setting.stages,
        PDL=pdl,
        num_warps=setting.warps,
        **({"launch_pdl": True} if pdl else {}),
    )
