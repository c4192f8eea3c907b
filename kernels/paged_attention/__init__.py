"""Attention of a step's rows over the paged KV cache."""

import torch

from pillion.kernels.paged_attention import reference
from pillion.kernels.paged_attention.rows import (
    AttentionRows,
    DecodeGather,
    PrefillTiles,
    cut_queries,
    gather_rows,
    prefill_tiles,
)

__all__ = [
    "AttentionRows",
    "DecodeGather",
    "PrefillTiles",
    "cut_queries",
    "gather_rows",
    "paged_attention",
    "prefill_tiles",
]


def paged_attention(
    q: torch.Tensor,
    layer_kv: torch.Tensor,
    rows: AttentionRows,
    scale: float,
    sliding_window: int | None = None,
    step_kv: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """softmax(q k^T * scale) v per token, each token over its own sequence up to and including itself.

    Query head h reads KV head h // (num_q_heads / num_kv_heads). With `sliding_window` w a token at
    position p sees positions p - w + 1 .. p. Rows with a KV length of 0 are masked: their output is
    undefined, and no other row depends on it. Nothing beyond a sequence's KV length gets into a result,
    whatever the cache holds there. Products and sums are at least as precise as the cache's type.

    q        [num_tokens, num_q_heads, head_dim]
    layer_kv [num_blocks, 2, num_kv_heads, block_size, head_dim], the last three dimensions dense;
             this step's tokens are already in it
    step_kv  keys, rotated, and values of this step's tokens, [num_tokens, num_kv_heads, head_dim] each: where
             they are at hand, prompts that are whole in this step may be read from there
    returns  [num_tokens, num_q_heads, head_dim]
    """
    if q.is_cuda:
        return _on_cuda(q, layer_kv, rows, scale, sliding_window, step_kv)
    return reference.paged_attention(q, layer_kv, rows, scale, sliding_window)


def _on_cuda(
    q: torch.Tensor,
    layer_kv: torch.Tensor,
    rows: AttentionRows,
    scale: float,
    sliding_window: int | None,
    step_kv: tuple[torch.Tensor, torch.Tensor] | None,
) -> torch.Tensor:
    from pillion.kernels.paged_attention import triton_decode, triton_prefill, whole_prompts

    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    table, num_decode = rows.block_table, rows.num_decode_rows
    if num_decode:
        triton_decode.decode_attention(
            q[:num_decode],
            layer_kv,
            table,
            rows.seq_lens,
            out[:num_decode],
            scale,
            sliding_window,
        )
    tiles = rows.prefill_tiles
    if tiles is None and rows.prefill_query_lens:
        tiles = _cut(rows)
    if tiles is None:
        return out
    is_fastest = whole_prompts.is_fastest(q.device, q.dtype, q.shape[2])
    if tiles.whole_prompts and step_kv is not None and sliding_window is None and is_fastest:
        for prompt in tiles.whole_prompts:
            attended = whole_prompts.whole_prompt_attention(q, *step_kv, prompt, scale)
            if prompt.length == len(q):
                return attended
            out[prompt.first_token : prompt.first_token + prompt.length] = attended
        tiles = tiles.without_whole_prompts()
    triton_prefill.prefill_attention(
        q, layer_kv, table, rows.query_start_loc, tiles, out, scale, sliding_window
    )
    return out


def _cut(rows: AttentionRows) -> PrefillTiles:
    """Of a step for which nobody did it beforehand."""
    device = rows.seq_lens.device
    return prefill_tiles(
        rows.prefill_query_lens,
        rows.prefill_seq_lens,
        rows.num_decode_rows,
        rows.seq_lens,
        lambda array: torch.from_numpy(array).to(device),
    )
