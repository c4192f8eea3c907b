"""The specification in torch, and the CPU path."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from pillion.kernels.paged_attention.rows import AttentionRows, DecodeGather, decode_gather


def paged_attention(
    q: torch.Tensor,
    layer_kv: torch.Tensor,
    rows: AttentionRows,
    scale: float,
    sliding_window: int | None,
) -> torch.Tensor:
    """See `pillion.kernels.paged_attention.paged_attention`."""
    num_decode = rows.num_decode_rows
    parts = []
    if num_decode:
        gather = rows.gather or decode_gather(
            layer_kv,
            rows.block_table[:num_decode],
            rows.seq_lens[:num_decode],
            rows.max_decode_seq_len,
        )
        parts.append(_decode(q[:num_decode], layer_kv, gather, scale, sliding_window))
    start = num_decode
    lengths = zip(rows.prefill_query_lens, rows.prefill_seq_lens, strict=True)
    for row, (query_len, seq_len) in enumerate(lengths, num_decode):
        keys, values = _contiguous_kv(layer_kv, rows.block_table[row], seq_len)
        chunk = q[start : start + query_len]
        parts.append(_prefill(chunk, keys, values, scale, sliding_window))
        start += query_len
    if not parts:
        return torch.empty_like(q)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(
    q: torch.Tensor,
    layer_kv: torch.Tensor,
    gather: DecodeGather,
    scale: float,
    sliding_window: int | None,
) -> torch.Tensor:
    """One token per row, all rows at once: [num_rows, num_q_heads, head_dim]."""
    num_rows, num_q_heads, head_dim = q.shape
    _, _, num_kv_heads, block_size, _ = layer_kv.shape
    run = block_size * head_dim
    num_runs = (
        layer_kv.untyped_storage().nbytes() // layer_kv.itemsize
    ) - layer_kv.storage_offset()
    pool = layer_kv.as_strided((num_runs // run, run), (run, 1))
    gathered = pool.index_select(0, gather.runs).view(2, num_rows, num_kv_heads, -1, head_dim)
    keys, values = gathered.to(q.dtype).unbind(0)

    beyond = gather.beyond
    if sliding_window is not None:
        beyond = beyond | _before_window(beyond, sliding_window)
    grouped = q.view(num_rows, num_kv_heads, -1, head_dim)
    scores = torch.matmul(grouped, keys.transpose(-1, -2)).float() * scale
    scores.masked_fill_(beyond[:, None, None, :], float("-inf"))
    weights = scores.softmax(-1).to(q.dtype)
    # A weight of zero does not silence what a former tenant left in the block if that is not finite.
    values = values.masked_fill(gather.beyond[:, None, :, None], 0)
    return torch.matmul(weights, values).view(num_rows, num_q_heads, head_dim)


def _before_window(beyond: torch.Tensor, sliding_window: int) -> torch.Tensor:
    """[num_rows, length] bool; True: further back than the window of the row's last token."""
    seq_lens = (~beyond).sum(1, keepdim=True)
    positions = torch.arange(beyond.shape[1], device=beyond.device)
    return positions < seq_lens - sliding_window


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
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    sliding_window: int | None,
) -> torch.Tensor:
    """The last tokens of one sequence: [query_len, num_q_heads, head_dim]."""
    query_len, seq_len = q.shape[0], keys.shape[1]
    positions = torch.arange(seq_len, device=q.device)
    own = positions[seq_len - query_len :, None]
    visible = positions <= own
    if sliding_window is not None:
        visible &= positions > own - sliding_window
    out = scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        keys.to(q.dtype).unsqueeze(0),
        values.to(q.dtype).unsqueeze(0),
        attn_mask=visible,
        scale=scale,
        enable_gqa=True,
    )
    return out.squeeze(0).transpose(0, 1)
