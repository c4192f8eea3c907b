"""Rotary position embedding, and the write of K and V into the paged cache, of one layer."""

import torch

from pillion.kernels.rms_norm.row_scale import RowScale
from pillion.kernels.rotary_kv_write import reference


def rotary_kv_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor,
    layer_kv: torch.Tensor,
    slot_mapping: torch.Tensor,
    row_scale: RowScale | None = None,
    pool_rows: torch.Tensor | None = None,
    rotated_k: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rotates q and k by their tokens' positions and stores k and v; returns the rotated q.

    The rotation (RoPE, arXiv 2104.09864) pairs element i of a head with element i + rotary_dim / 2, the
    layout of Hugging Face checkpoints. Elements from rotary_dim on pass unchanged.

    q            [num_tokens, num_q_heads, head_dim]
    k, v         [num_tokens, num_kv_heads, head_dim]
    cos_sin      [num_tokens, 2, rotary_dim / 2] float32; cosines, then sines, of each token's position:
                 gathered once per step and shared by all layers
    layer_kv     [num_blocks, 2, num_kv_heads, block_size, head_dim], the last three dimensions dense
    slot_mapping [num_tokens] int64; block_id * block_size + offset, -1: this token is not stored
    row_scale    multiplies each token's q, k and v first
    pool_rows    what `rows_in_pool` gave for this slot mapping; None: it is computed here
    rotated_k    [num_tokens, num_kv_heads, head_dim] contiguous, for those who want the rotated k densely too

    Writes: layer_kv at the tokens of slot_mapping, and anything in its last block, which is scratch; rotated_k of
    all tokens, if it is given.
    """
    if q.is_cuda:
        from pillion.kernels.rotary_kv_write import triton_impl

        return triton_impl.rotary_kv_write(
            q, k, v, cos_sin, layer_kv, slot_mapping, row_scale, rotated_k
        )
    return reference.rotary_kv_write(
        q, k, v, cos_sin, layer_kv, slot_mapping, row_scale, pool_rows, rotated_k
    )


def rows_in_pool(layer_kv: torch.Tensor, slot_mapping: torch.Tensor) -> torch.Tensor:
    """Where the tokens of a step are stored, for the torch reference; from any layer, for all of them.

    Returns [num_tokens * 2 * num_kv_heads] int64: rows of head_dim numbers, counted from a layer's start,
    token by token the keys of all heads and then their values.
    """
    return reference.rows_in_pool(layer_kv, slot_mapping)
