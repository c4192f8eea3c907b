"""The specification in torch, and the CPU path.

Many scores are faster as two products around a softmax than in scaled_dot_product_attention, on a CPU with
instructions for bfloat16 twice as fast; few are slower, as three operations cost more to call than one.
"""

from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from pillion.kernels.paged_attention.rows import (
    AttentionRows,
    DecodeGather,
    decode_window_bias,
    gather_rows,
    pool_from,
    product_dtype,
    very_low,
)

# From so many decode rows times KV heads on, products are faster.
_MANY_HEADS: Final = 24
# Tokens of a prefill row that attend together: short, so that little of what they must not see is computed.
_PIECE_TOKENS: Final = 128
# A prompt of so few tokens attends in one operation.
_FEW_TOKENS: Final = 32
_LATER: Final = torch.ones(_PIECE_TOKENS, _PIECE_TOKENS, dtype=torch.bool).triu_(1)


def paged_attention(
    q: torch.Tensor,
    layer_kv: torch.Tensor,
    rows: AttentionRows,
    scale: float,
    sliding_window: int | None,
) -> torch.Tensor:
    """See `pillion.kernels.paged_attention.paged_attention`."""
    num_decode = rows.num_decode_rows
    dtype, q = q.dtype, q.to(product_dtype(layer_kv.dtype))
    parts = []
    if num_decode:
        gather = rows.gather or gather_rows(
            layer_kv, rows.block_table, rows.seq_lens, num_decode, rows.max_decode_seq_len
        )
        parts.append(_decode(q[:num_decode], layer_kv, gather, scale, sliding_window))
    start = num_decode
    lengths = zip(rows.prefill_query_lens, rows.prefill_seq_lens, strict=True)
    for row, (query_len, seq_len) in enumerate(lengths):
        kv = _contiguous_kv(layer_kv, rows.block_table[num_decode + row], seq_len)
        parts.append(_prefill(q[start : start + query_len], *kv, scale, sliding_window))
        start += query_len
    if not parts:
        return torch.empty_like(q, dtype=dtype)
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(dtype)


def _decode(
    q: torch.Tensor,
    layer_kv: torch.Tensor,
    groups: tuple[DecodeGather, ...],
    scale: float,
    sliding_window: int | None,
) -> torch.Tensor:
    """One token per row: [num_rows, num_q_heads, head_dim]."""
    if groups[0].rows is None:
        return _decode_group(q, layer_kv, groups[0], scale, sliding_window)
    out = torch.empty_like(q)
    for group in groups:
        some = _decode_group(q[group.rows], layer_kv, group, scale, sliding_window)
        out[group.rows] = some
    return out


def _decode_group(
    q: torch.Tensor,
    layer_kv: torch.Tensor,
    gather: DecodeGather,
    scale: float,
    sliding_window: int | None,
) -> torch.Tensor:
    """Rows of similar lengths, all at once: [num_rows, num_q_heads, head_dim]."""
    num_rows, num_q_heads, head_dim = q.shape
    num_kv_heads = layer_kv.shape[2]
    pool = pool_from(layer_kv, gather.tokens_per_piece * head_dim)
    gathered = pool.index_select(0, gather.pieces).to(q.dtype)
    if gather.beyond is not None:
        gathered.view(-1, head_dim).index_fill_(0, gather.beyond, 0)
    keys, values = gathered.view(2, num_rows, num_kv_heads, -1, head_dim).unbind(0)
    bias = gather.bias
    if sliding_window is not None:
        bias = decode_window_bias(gather, sliding_window)
    # The query heads that share a KV head are the "tokens" that attend to it.
    q = q.view(num_rows, num_kv_heads, -1, head_dim)
    if num_rows * num_kv_heads < _MANY_HEADS:
        mask = bias.expand(-1, 1, q.shape[2], -1)
        out = scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale)
    else:
        scores = _product(q.flatten(0, 1), keys.flatten(0, 1).mT, scale)
        scores.view(*q.shape[:3], -1).add_(bias)
        out = torch.bmm(scores.softmax(-1), values.flatten(0, 1))
    return out.reshape(num_rows, num_q_heads, head_dim)


def _contiguous_kv(
    layer_kv: torch.Tensor, block_ids: torch.Tensor, seq_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of one sequence, each [num_kv_heads, seq_len, head_dim]."""
    _, _, num_kv_heads, block_size, head_dim = layer_kv.shape
    num_blocks = -(-seq_len // block_size)
    blocks = layer_kv.index_select(0, block_ids[:num_blocks]).to(product_dtype(layer_kv.dtype))
    blocks = blocks.permute(1, 2, 0, 3, 4)
    keys, values = blocks.reshape(2, num_kv_heads, -1, head_dim)[:, :, :seq_len].unbind(0)
    return keys, values


def _prefill(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    sliding_window: int | None,
) -> torch.Tensor:
    """The last tokens of one sequence: [query_len, num_q_heads, head_dim]."""
    query_len, num_q_heads, head_dim = q.shape
    num_kv_heads, seq_len, _ = keys.shape
    window = sliding_window or seq_len
    if query_len == seq_len <= min(_FEW_TOKENS, window):
        q, keys, values = q.transpose(0, 1)[None], keys[None], values[None]
        out = scaled_dot_product_attention(
            q, keys, values, is_causal=True, scale=scale, enable_gqa=True
        )
        return out[0].transpose(0, 1)
    out = torch.empty_like(q)
    for start in range(0, query_len, _PIECE_TOKENS):
        end = min(start + _PIECE_TOKENS, query_len)
        first = seq_len - query_len + start  # position of the piece's first token
        seen = slice(max(0, first - window + 1), first + end - start)
        piece = q[start:end].transpose(0, 1).reshape(num_kv_heads, -1, head_dim)
        scores = _product(piece, keys[:, seen].mT, scale)
        _hide(scores.view(num_q_heads, end - start, -1), window)
        part = torch.bmm(scores.softmax(-1), values[:, seen])
        out[start:end] = part.view(num_q_heads, -1, head_dim).transpose(0, 1)
    return out


def _product(q: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
    """q keys * scale, [n, queries, head_dim] and [n, head_dim, tokens]; scaled before it is rounded."""
    return torch.baddbmm(q.new_empty(1, 1, 1), q, keys, beta=0, alpha=scale)


def _hide(scores: torch.Tensor, window: int) -> None:
    """Hides what queries, the last tokens of [num_heads, num_queries, num_seen], must not see. Writes: scores."""
    num_queries, num_seen = scores.shape[1:]
    low = very_low(scores.dtype)
    if num_seen <= window:
        scores[..., num_seen - num_queries :].masked_fill_(_LATER[:num_queries, :num_queries], low)
        return
    seen = torch.arange(num_seen)
    own = seen[num_seen - num_queries :, None]
    scores.masked_fill_((seen > own) | (seen <= own - window), low)
