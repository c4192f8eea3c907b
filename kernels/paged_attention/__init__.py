"""Attention of a step's rows over the paged KV cache."""

import torch

from pillion.kernels.paged_attention import reference
from pillion.kernels.paged_attention.rows import AttentionRows, RowGather, gather_rows

__all__ = ["AttentionRows", "RowGather", "gather_rows", "paged_attention"]


def paged_attention(
    q: torch.Tensor,
    layer_kv: torch.Tensor,
    rows: AttentionRows,
    scale: float,
    sliding_window: int | None = None,
) -> torch.Tensor:
    """softmax(q k^T * scale) v per token, each token over its own sequence up to and including itself.

    Query head h reads KV head h // (num_q_heads / num_kv_heads). With `sliding_window` w a token at
    position p sees positions p - w + 1 .. p. Rows with a KV length of 0 are masked: their output is
    undefined, and no other row depends on it. Nothing beyond a sequence's KV length gets into a result,
    whatever the cache holds there. Products and sums are at least as precise as the cache's type.

    q        [num_tokens, num_q_heads, head_dim]
    layer_kv [num_blocks, 2, num_kv_heads, block_size, head_dim], the last three dimensions dense;
             this step's tokens are already in it
    returns  [num_tokens, num_q_heads, head_dim]
    """
    return reference.paged_attention(q, layer_kv, rows, scale, sliding_window)
