"""The specification in torch, and the CPU path.

Measured on a CPU with one thread for 30 layers of 9 over 3 heads of 64 elements: gathering token by token
costs what gathering block by block does and needs no second pass that silences the rest of the last block;
scaled_dot_product_attention over it takes as long as two products and a softmax in float32 with 32
rows of 192 tokens, and half as long in bfloat16 or with one row.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

from pillion.kernels.paged_attention.rows import (
    PIECE_TOKENS,
    AttentionRows,
    DecodeGather,
    causal_bias,
    decode_window_bias,
    gather_rows,
)


def paged_attention(
    q: torch.Tensor,
    layer_kv: torch.Tensor,
    rows: AttentionRows,
    scale: float,
    sliding_window: int | None,
) -> torch.Tensor:
    """See `pillion.kernels.paged_attention.paged_attention`."""
    num_decode = rows.num_decode_rows
    gather = rows.gather or gather_rows(
        layer_kv,
        rows.block_table,
        rows.seq_lens,
        num_decode,
        rows.max_decode_seq_len,
        rows.prefill_query_lens,
        rows.prefill_seq_lens,
    )
    dtype, q = q.dtype, q.to(layer_kv.dtype)
    parts = []
    if num_decode:
        parts.append(_decode(q[:num_decode], layer_kv, gather.decode, scale, sliding_window))
    start = num_decode
    lengths = zip(rows.prefill_query_lens, rows.prefill_seq_lens, strict=True)
    for row, (query_len, seq_len) in enumerate(lengths):
        bias = gather.prefill_bias[row]
        if sliding_window is not None and seq_len > sliding_window:
            bias = causal_bias(layer_kv, query_len, seq_len, sliding_window)
        kv = _contiguous_kv(layer_kv, rows.block_table[num_decode + row], seq_len)
        parts.append(_prefill(q[start : start + query_len], kv, bias, scale))
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
    # From here to the end of the pool, whatever layer: the gather's tokens count from this layer's start.
    pool_size = layer_kv.untyped_storage().nbytes() // layer_kv.element_size()
    num_tokens = (pool_size - layer_kv.storage_offset()) // head_dim
    pool = layer_kv.as_strided((num_tokens, head_dim), (head_dim, 1))
    gathered = pool.index_select(0, gather.tokens)
    keys, values = gathered.view(2, num_rows, num_kv_heads, -1, head_dim).unbind(0)
    bias = gather.bias
    if sliding_window is not None:
        bias = decode_window_bias(gather, sliding_window)
    # The query heads that share a KV head are the "tokens" that attend to it.
    grouped = q.view(num_rows, num_kv_heads, -1, head_dim)
    group_size = grouped.shape[2]
    out = scaled_dot_product_attention(
        grouped,
        keys,
        values,
        attn_mask=bias.expand(-1, 1, group_size, -1),
        scale=scale,
    )
    return out.reshape(num_rows, num_q_heads, head_dim)


def _contiguous_kv(
    layer_kv: torch.Tensor, block_ids: torch.Tensor, seq_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of one sequence, each [num_kv_heads, seq_len, head_dim]."""
    _, _, num_kv_heads, block_size, head_dim = layer_kv.shape
    num_blocks = -(-seq_len // block_size)
    blocks = layer_kv.index_select(0, block_ids[:num_blocks]).permute(1, 2, 0, 3, 4)
    keys, values = blocks.reshape(2, num_kv_heads, -1, head_dim)[:, :, :seq_len].unbind(0)
    return keys, values


def _prefill(
    q: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor],
    bias: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """The last tokens of one sequence: [query_len, num_q_heads, head_dim].

    The operator computes what a bias hides as well, so most of that is left out piece by piece.
    """
    keys, values = kv
    query_len, seq_len = len(q), keys.shape[1]
    parts = []
    for start in range(0, query_len, PIECE_TOKENS):
        end = min(start + PIECE_TOKENS, query_len)
        visible = seq_len - query_len + end
        out = scaled_dot_product_attention(
            q[start:end].transpose(0, 1).unsqueeze(0),
            keys[:, :visible].unsqueeze(0),
            values[:, :visible].unsqueeze(0),
            attn_mask=None if bias is None else bias[start:end, :visible],
            is_causal=bias is None,
            scale=scale,
            enable_gqa=True,
        )
        parts.append(out.squeeze(0).transpose(0, 1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)
