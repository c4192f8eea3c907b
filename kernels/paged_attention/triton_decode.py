"""Attention of one new token per row over its paged KV cache, split along the sequence.

A program owns one row, one KV head (with the query heads that share it; of more than 16 an equal part) and one
split of the row's blocks; a long row has more splits, for it may be alone among short ones. The program that finishes
last for its row and head merges the splits, so there is no second kernel.
"""

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_LOG2_E = 1.4426950408889634
# Query heads of a program at most.
_MOST_HEADS = 16
# Programs of a split launch at most.
_MOST_PROGRAMS = 8192
# Up to so many pairs of a row and a KV head: tokens per step of a program, its warps, and splits of a row, for heads of
# up to 64 and of more elements. The last is also for more pairs than that.
_NARROW = {
    32: (32, 1, 16),
    128: (32, 1, 8),
    320: (32, 1, 4),
    400: (16, 1, 4),
    700: (16, 1, 2),
    1400: (32, 1, 1),
    2000: (64, 2, 1),
    2048: (32, 1, 1),
}
# Of (16, 1, 1) a device runs 1,188 programs at once: a few more would leave most of it without work.
_WIDE = {
    32: (16, 1, 16),
    128: (16, 1, 8),
    256: (16, 1, 4),
    384: (16, 1, 2),
    1188: (16, 1, 1),
    1800: (32, 1, 1),
    2048: (16, 1, 1),
}
# A row may have more splits, one for each so many tokens, up to this number. More would cost all steps: splits that
# no row has are launched too, some thousand in a microsecond.
_LONG_SPLIT_TOKENS = 2048
_MOST_SPLITS = 4
# Pairs with which layers are faster if the launch behind is let in at once, for narrow and wide heads; measured with
# `benchmarks/tune_fused_linear.py`.
_EARLY = (range(33, 129), range(33, 513))


@triton.jit
def _merge(
    partial_ptr,
    stats_ptr,
    first_part,
    active,
    SPLITS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    PADDED_DIM: tl.constexpr,
):
    """The splits' results as one, [PADDED_GROUP, PADDED_DIM]; all loads are independent of each other."""
    split = tl.arange(0, SPLITS)
    g = tl.arange(0, PADDED_GROUP)
    d = tl.arange(0, PADDED_DIM)
    at = stats_ptr + (first_part + split)[:, None] * 32 + g[None, :]
    there = (split < active)[:, None] & (g < GROUP)[None, :]
    tops = tl.load(at, mask=there, other=float("-inf"), cache_modifier=".cg")
    totals = tl.load(at + 16, mask=there, other=0.0, cache_modifier=".cg")
    top = tl.max(tops, axis=0)
    # Padded heads have seen nothing; 0 in place of -inf avoids inf - inf.
    top = tl.where(g < GROUP, top, 0.0)
    total = tl.sum(totals * tl.exp2(tops - top[None, :]), axis=0)
    acc = tl.zeros((PADDED_GROUP, PADDED_DIM), dtype=tl.float32)
    AT_ONCE: tl.constexpr = 8 if SPLITS > 8 else SPLITS
    for i0 in range(0, active, AT_ONCE):
        for i in tl.static_range(AT_ONCE):
            part = first_part + i0 + i
            is_there = g < tl.where(i0 + i < active, GROUP, 0)
            part_top = tl.load(
                stats_ptr + part * 32 + g, mask=is_there, other=float("-inf"), cache_modifier=".cg"
            )
            part_acc = tl.load(
                partial_ptr + (part * GROUP + g)[:, None] * PADDED_DIM + d[None, :],
                mask=is_there[:, None],
                other=0.0,
                cache_modifier=".cg",
            )
            acc += part_acc * tl.exp2(part_top - top)[:, None]
    return acc / tl.where(g < GROUP, total, 1.0)[:, None]


@triton.jit(do_not_specialize=["table_stride"])
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
    NUM_KV_HEADS: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    SPLITS: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
    LONG_SPLIT_TOKENS: tl.constexpr,
    WINDOW: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out[row, head] = softmax(q k^T scale) v over the last WINDOW (0: all) positions.

    A KV head that many query heads share counts as PARTS heads, each of GROUP query heads.
    """
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    # Lengths were made at the step's start, long before the launch that is waited for.
    seq_len = tl.load(seq_lens_ptr + row)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(seq_len - WINDOW, 0)
    span = seq_len - first
    splits = tl.minimum(tl.maximum(tl.cdiv(span, LONG_SPLIT_TOKENS), SPLITS), MOST_SPLITS)
    chunk = tl.cdiv(tl.cdiv(span, splits), BLOCK_T) * BLOCK_T
    start = first + split * chunk
    end = tl.minimum(start + chunk, seq_len)
    g = tl.arange(0, 16)
    d = tl.arange(0, PADDED_DIM)
    g_mask = g < GROUP
    d_mask = d < HEAD_DIM
    head = kv_head * GROUP + g
    out_at = out_ptr + row.to(tl.int64) * out_stride + head[:, None] * HEAD_DIM + d[None, :]
    out_mask = g_mask[:, None] & d_mask[None, :]
    if PDL:
        gdc_wait()
        if EARLY:
            gdc_launch_dependents()
    # A masked row's place in the output may belong to a prefill row.
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
    k_base = kv_ptr + kv_head // PARTS * kv_head_stride + d[None, :]
    lanes = tl.arange(0, BLOCK_T)
    # Block ids are read one step ahead: with them inside, the loop's other loads could not run ahead.
    t = start + lanes
    block = tl.load(table + t // BLOCK_SIZE, mask=t < end, other=0)
    for t0 in tl.range(start, end, BLOCK_T, num_stages=STAGES):
        t = t0 + lanes
        t_mask = t < end
        at = block.to(tl.int64)[:, None] * kv_block_stride + (t % BLOCK_SIZE)[:, None] * HEAD_DIM
        ahead = t + BLOCK_T
        block = tl.load(table + ahead // BLOCK_SIZE, mask=ahead < end, other=0)
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
    if PDL and not EARLY:
        gdc_launch_dependents()
    active = tl.cdiv(span, chunk)
    if active == 1:
        tl.store(out_at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=out_mask)
        return
    pair = row * NUM_KV_HEADS + kv_head
    first_part = pair.to(tl.int64) * MOST_SPLITS
    part = first_part + split
    tl.store(
        partial_ptr + (part * GROUP + g)[:, None] * PADDED_DIM + d[None, :],
        acc,
        mask=g_mask[:, None],
    )
    tl.store(stats_ptr + part * 32 + g, top)
    tl.store(stats_ptr + part * 32 + 16 + g, total)
    tl.debug_barrier()  # all threads' stores come before the one thread's arrival
    arrived = tl.atomic_add(arrivals_ptr + pair, 1, sem="acq_rel")
    if arrived != active - 1:
        return
    tl.store(arrivals_ptr + pair, 0)
    merged = _merge(
        partial_ptr, stats_ptr, first_part, active, MOST_SPLITS, GROUP, PADDED_GROUP, PADDED_DIM
    )
    g = tl.arange(0, PADDED_GROUP)
    head = kv_head * GROUP + g
    tl.store(
        out_ptr + row.to(tl.int64) * out_stride + head[:, None] * HEAD_DIM + d[None, :],
        merged.to(out_ptr.dtype.element_ty),
        mask=(g < GROUP)[:, None] & d_mask[None, :],
    )


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


@functools.lru_cache
def has_pdl(device: torch.device) -> bool:
    """Whether kernels can be set up while the one before ends (programmatic dependent launch)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


class Setting(NamedTuple):
    """How the work is cut: tokens per step of a program, its warps, loads in flight, splits of a sequence.

    `early`: the launch behind is let in from the start on, so that it can ask for its weights meanwhile.
    `most_splits`: of a long sequence; 0: no more than of any.
    """

    block_tokens: int
    warps: int
    stages: int
    splits: int
    early: bool = False
    most_splits: int = 0


def best_setting(num_pairs: int, head_dim: int) -> Setting:
    """For so many pairs of a row and a KV head, the same for every length.

    By times of the kernel alone on an H200, as `benchmarks/tune_decode_attention.py` takes them, for rows of 384 to
    1,280 tokens of one length and of many.
    """
    is_wide = head_dim > 64
    table = _WIDE if is_wide else _NARROW
    block_tokens, warps, splits = next(
        (setting for most, setting in table.items() if num_pairs <= most), table[max(table)]
    )
    fits = num_pairs * _MOST_SPLITS <= _MOST_PROGRAMS
    most_splits = max(splits, _MOST_SPLITS) if fits else splits
    early = num_pairs in _EARLY[is_wide]
    return Setting(block_tokens, warps, 3, splits, early, most_splits)


def parts_of(group: int) -> int:
    """Equal parts of so many query heads that share a KV head, each for a program; as few as can be."""
    return next(
        parts
        for parts in range(1, group + 1)
        if group % parts == 0 and group <= parts * _MOST_HEADS
    )


def decode_attention(
    q: torch.Tensor,
    layer_kv: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    sliding_window: int | None,
    setting: Setting | None = None,
) -> None:
    """Attention of rows with one token each: q and out are [num_rows, num_q_heads, head_dim].

    Writes: out, but for rows without any KV.
    """
    num_rows, num_q_heads, head_dim = q.shape
    parts = parts_of(num_q_heads // layer_kv.shape[2])
    num_kv_heads = layer_kv.shape[2] * parts
    group = num_q_heads // num_kv_heads
    dim = max(16, triton.next_power_of_2(head_dim))
    num_pairs = num_rows * num_kv_heads
    setting = setting or best_setting(num_pairs, head_dim)
    most_splits = setting.most_splits or setting.splits
    if most_splits > 1 and num_pairs * most_splits > _MOST_PROGRAMS:
        raise ValueError(f"{num_pairs} pairs in {most_splits} splits; at most {_MOST_PROGRAMS}")
    partial, stats, arrivals = _scratch(q.device, dim)
    pdl = has_pdl(q.device)
    decode_attention_kernel[(num_rows, num_kv_heads, most_splits)](
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
        NUM_KV_HEADS=num_kv_heads,
        PARTS=parts,
        GROUP=group,
        PADDED_GROUP=triton.next_power_of_2(group),
        HEAD_DIM=head_dim,
        PADDED_DIM=dim,
        BLOCK_SIZE=layer_kv.shape[3],
        BLOCK_T=setting.block_tokens,
        SPLITS=setting.splits,
        MOST_SPLITS=most_splits,
        LONG_SPLIT_TOKENS=_LONG_SPLIT_TOKENS,
        WINDOW=sliding_window or 0,
        STAGES=setting.stages,
        PDL=pdl,
        EARLY=setting.early,
        num_warps=setting.warps,
        **({"launch_pdl": True} if pdl else {}),
    )
