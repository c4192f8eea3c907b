"""Attention of prefill rows: a piece of one sequence's queries against its paged keys and values.

Scores are softmaxed on the way (arXiv 2205.14135). Blocks that every query of the program sees take no mask; the
causal border and the window's edge do. Where there are few pieces, long sequences are split between programs: the
one that finishes last for its piece and head merges them, in their order.
"""

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from pillion.kernels.paged_attention.rows import PrefillTiles

_LOG2_E = 1.4426950408889634
# Memory of what split pieces are merged from, in numbers of float32.
_SCRATCH_NUMBERS = 24 << 20
_MOST_PIECES = 1 << 16
# Splits of a piece at most; none is for fewer keys than this.
_MOST_SPLITS = 8
_MOST_SPLIT_QUERIES = 64
_LEAST_KEYS = 1024
# What a program may have on a Hopper card.
_SHARED_BYTES = 227 << 10


@triton.jit
def _tile(
    q, k_base, v_base, table, block, t0, seq_len, positions, top, total, acc, scale_log2, kv_block_stride,
    d_mask, WINDOW: tl.constexpr, MASKED: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Keys and values at t0 taken into the running softmax; `block` are their block ids, the next ones' are returned.

    Read inside, they would keep the other loads from running ahead.
    """
    t = t0 + tl.arange(0, BLOCK_N)
    inside = t < seq_len
    at = block.to(tl.int64) * kv_block_stride + (t % BLOCK_SIZE) * HEAD_DIM
    block = tl.load(table + (t + BLOCK_N) // BLOCK_SIZE, mask=t + BLOCK_N < seq_len, other=0)
    mask = inside[:, None] & d_mask[None, :]
    k = tl.load(k_base + at[:, None], mask=mask, other=0.0)
    s = tl.dot(q, k.T, input_precision="ieee") * scale_log2
    if MASKED:
        seen = inside[None, :] & (t[None, :] <= positions[:, None])
        if WINDOW > 0:
            seen = seen & (t[None, :] > positions[:, None] - WINDOW)
        s = tl.where(seen, s, float("-inf"))
    new_top = tl.maximum(top, tl.max(s, axis=1))
    # A row that has seen nothing yet keeps -inf; 0 in its place avoids inf - inf.
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    p = tl.exp2(s - base[:, None])
    keep = tl.exp2(top - base)
    v = tl.load(v_base + at[:, None], mask=mask, other=0.0)
    acc = tl.dot(p.to(v.dtype), v, acc * keep[:, None], input_precision="ieee")
    return block, new_top, total * keep + tl.sum(p, axis=1), acc


@triton.jit
def _merge(
    acc_ptr, stats_ptr, first_part, active, BLOCK_M: tl.constexpr, PADDED_DIM: tl.constexpr
):  # fmt: skip
    """The splits' results as one, [BLOCK_M, PADDED_DIM]."""
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, PADDED_DIM)
    top = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, PADDED_DIM), dtype=tl.float32)
    for split in range(0, active):
        part = first_part + split
        stats = stats_ptr + part * 2 * BLOCK_M + m
        part_top = tl.load(stats, cache_modifier=".cg")
        part_total = tl.load(stats + BLOCK_M, cache_modifier=".cg")
        at = acc_ptr + (part * BLOCK_M + m)[:, None] * PADDED_DIM + d[None, :]
        part_acc = tl.load(at, cache_modifier=".cg")
        new_top = tl.maximum(top, part_top)
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        keep, take = tl.exp2(top - base), tl.exp2(part_top - base)
        total = total * keep + part_total * take
        acc = acc * keep[:, None] + part_acc * take[:, None]
        top = new_top
    return acc / total[:, None]


@triton.jit(do_not_specialize=["table_stride", "splits"])
def _prefill_attention_kernel(
    q_ptr,
    kv_ptr,
    block_table_ptr,
    query_start_ptr,
    seq_lens_ptr,
    tile_rows_ptr,
    tile_starts_ptr,
    out_ptr,
    acc_ptr,
    stats_ptr,
    arrivals_ptr,
    scale_log2,
    q_stride,
    table_stride,
    kv_block_stride,
    kv_half_stride,
    kv_head_stride,
    splits,
    NUM_Q_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
    LEAST_KEYS: tl.constexpr,
):
    tile = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.load(tile_rows_ptr + tile)
    if row < 0:
        return
    seq_len = tl.load(seq_lens_ptr + row)
    if seq_len == 0:
        return
    start = tl.load(query_start_ptr + row)
    query_len = tl.load(query_start_ptr + row + 1) - start
    m0 = tl.load(tile_starts_ptr + tile)
    first_position = seq_len - query_len + m0
    m = m0 + tl.arange(0, BLOCK_M)
    positions = seq_len - query_len + m
    d = tl.arange(0, PADDED_DIM)
    d_mask = d < HEAD_DIM
    mask = (m < query_len)[:, None] & d_mask[None, :]
    tokens = (start + m).to(tl.int64)
    q = tl.load(
        q_ptr + tokens[:, None] * q_stride + head * HEAD_DIM + d[None, :], mask=mask, other=0.0
    )
    table = block_table_ptr + row.to(tl.int64) * table_stride
    k_base = kv_ptr + (head // GROUP) * kv_head_stride + d[None, :]
    v_base = k_base + kv_half_stride
    top = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, PADDED_DIM), dtype=tl.float32)
    end = tl.minimum(seq_len, first_position + BLOCK_M)
    if WINDOW > 0:
        begin = tl.maximum(first_position - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
        plain = begin
    else:
        begin = 0
        plain = (first_position + 1) // BLOCK_N * BLOCK_N
    active = 1
    if SPLIT:
        chunk = tl.cdiv(tl.maximum(tl.cdiv(end - begin, splits), LEAST_KEYS), BLOCK_N) * BLOCK_N
        active = tl.cdiv(end - begin, chunk)
        split = tl.program_id(2)
        if split >= active:
            return
        begin += split * chunk
        end = tl.minimum(begin + chunk, end)
        plain = tl.minimum(tl.maximum(plain, begin), end)
    t = begin + tl.arange(0, BLOCK_N)
    block = tl.load(table + t // BLOCK_SIZE, mask=t < seq_len, other=0)
    for t0 in tl.range(begin, plain, BLOCK_N, num_stages=STAGES):
        block, top, total, acc = _tile(
            q, k_base, v_base, table, block, t0, seq_len, positions, top, total, acc, scale_log2,
            kv_block_stride, d_mask, WINDOW, False, HEAD_DIM, BLOCK_SIZE, BLOCK_N,
        )  # fmt: skip
    for t0 in tl.range(plain, end, BLOCK_N, num_stages=STAGES):
        block, top, total, acc = _tile(
            q, k_base, v_base, table, block, t0, seq_len, positions, top, total, acc, scale_log2,
            kv_block_stride, d_mask, WINDOW, True, HEAD_DIM, BLOCK_SIZE, BLOCK_N,
        )  # fmt: skip
    out_at = out_ptr + (tokens[:, None] * NUM_Q_HEADS + head) * HEAD_DIM + d[None, :]
    if active == 1:
        tl.store(out_at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=mask)
        return
    if SPLIT:
        piece = tile * NUM_Q_HEADS + head
        first_part = piece.to(tl.int64) * splits
        part = first_part + split
        i = tl.arange(0, BLOCK_M)
        tl.store(acc_ptr + (part * BLOCK_M + i)[:, None] * PADDED_DIM + d[None, :], acc)
        tl.store(stats_ptr + part * 2 * BLOCK_M + i, top)
        tl.store(stats_ptr + part * 2 * BLOCK_M + BLOCK_M + i, total)
        tl.debug_barrier()  # all threads' stores come before the one thread's arrival
        arrived = tl.atomic_add(arrivals_ptr + piece, 1, sem="acq_rel")
        if arrived != active - 1:
            return
        tl.store(arrivals_ptr + piece, 0)
        merged = _merge(acc_ptr, stats_ptr, first_part, active, BLOCK_M, PADDED_DIM)
        tl.store(out_at, merged.to(out_ptr.dtype.element_ty), mask=mask)


@functools.lru_cache
def _scratch(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Splits' sums, their statistics and arrival counters, for any launch.

    Made once and never moved, because graphs keep their addresses. The counters return to zero by
    themselves at the end of each launch.
    """
    return (
        torch.empty(_SCRATCH_NUMBERS, device=device),
        torch.empty(_SCRATCH_NUMBERS // 8, device=device),
        torch.zeros(_MOST_PIECES, dtype=torch.int32, device=device),
    )


def _num_splits(num_pieces: int, block_queries: int, dim: int) -> int:
    """Of each piece of few queries: as many as there is memory for. Where pieces are large there are enough of them."""
    if num_pieces > _MOST_PIECES or block_queries > _MOST_SPLIT_QUERIES:
        return 1
    splits = _MOST_SPLITS
    while splits > 1 and num_pieces * splits * block_queries * dim > _SCRATCH_NUMBERS:
        splits //= 2
    return splits


class Setting(NamedTuple):
    """How the work is cut: queries and keys of a program's step, its warps, loads in flight."""

    block_queries: int
    block_keys: int
    warps: int
    stages: int


def best_setting(
    head_dim: int, block_queries: int, number_bytes: int = 2, shared_bytes: int = _SHARED_BYTES
) -> Setting:
    """For pieces of so many queries; measured with `benchmarks/tune_prefill_attention.py` on an H200.

    Fewer keys and values are in flight where heads, or their numbers, are too large for the shared memory.
    """
    keys, stages = 64, 3
    row_bytes = triton.next_power_of_2(head_dim) * number_bytes
    while row_bytes * (block_queries + 2 * keys * stages) > shared_bytes and keys > 16:
        if stages > 1:
            stages -= 1
        else:
            keys //= 2
    return Setting(block_queries, keys, 8 if head_dim > 64 and block_queries == 128 else 4, stages)


@functools.lru_cache
def _shared_bytes(device: torch.device) -> int:
    """Shared memory that a program may have; Triton's interpreter knows no limit."""
    if device.type != "cuda":
        return _SHARED_BYTES
    found: Any = torch.cuda.get_device_properties(device)
    return int(found.shared_memory_per_block_optin)


def prefill_attention(
    q: torch.Tensor,
    layer_kv: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    tiles: PrefillTiles,
    out: torch.Tensor,
    scale: float,
    sliding_window: int | None,
    setting: Setting | None = None,
) -> None:
    """Attention of the rows that `tiles` names. Writes: out, at their tokens."""
    _, num_q_heads, head_dim = q.shape
    setting = setting or best_setting(
        head_dim, tiles.num_queries, q.element_size(), _shared_bytes(q.device)
    )
    dim = max(16, triton.next_power_of_2(head_dim))
    num_tiles = tiles.rows.shape[0]
    if num_tiles == 0:
        return
    splits = _num_splits(num_tiles * num_q_heads, setting.block_queries, dim)
    _prefill_attention_kernel[(num_tiles, num_q_heads, splits)](
        q,
        layer_kv,
        block_table,
        query_start_loc,
        tiles.seq_lens,
        tiles.rows,
        tiles.starts,
        out,
        *_scratch(q.device),
        scale * _LOG2_E,
        q.stride(0),
        block_table.stride(0),
        layer_kv.stride(0),
        layer_kv.stride(1),
        layer_kv.stride(2),
        splits,
        NUM_Q_HEADS=num_q_heads,
        GROUP=num_q_heads // layer_kv.shape[2],
        HEAD_DIM=head_dim,
        PADDED_DIM=dim,
        BLOCK_SIZE=layer_kv.shape[3],
        WINDOW=sliding_window or 0,
        BLOCK_M=setting.block_queries,
        BLOCK_N=setting.block_keys,
        STAGES=setting.stages,
        SPLIT=setting.block_queries <= _MOST_SPLIT_QUERIES,
        LEAST_KEYS=_LEAST_KEYS,
        num_warps=setting.warps,
    )
