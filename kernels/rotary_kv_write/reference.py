"""The specification in torch, and the CPU path: few operators, as each costs microseconds per layer."""

import torch

from pillion.kernels.paged_attention.rows import pool_from
from pillion.kernels.rms_norm.row_scale import RowScale


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
    """See `pillion.kernels.rotary_kv_write.rotary_kv_write`."""
    if row_scale is not None:
        factors = row_scale.factors()[:, None, None]
        q, k, v = ((x * factors).to(x.dtype) for x in (q, k, v))
    num_q_heads, num_kv_heads = q.shape[1], k.shape[1]
    rotated = _rotate(torch.cat((q, k), dim=1), cos_sin)
    rotated_q, own_k = rotated.split_with_sizes((num_q_heads, num_kv_heads), dim=1)
    if rotated_k is not None:
        rotated_k.copy_(own_k)
    kv = torch.cat((own_k, v), dim=1).to(layer_kv.dtype)
    if pool_rows is None:
        pool_rows = rows_in_pool(layer_kv, slot_mapping)
    head_dim = kv.shape[2]
    pool_from(layer_kv, head_dim).index_copy_(0, pool_rows, kv.view(-1, head_dim))
    return rotated_q


def rows_in_pool(layer_kv: torch.Tensor, slot_mapping: torch.Tensor) -> torch.Tensor:
    """See `pillion.kernels.rotary_kv_write.rows_in_pool`."""
    num_blocks, _, num_kv_heads, block_size, head_dim = layer_kv.shape
    # -1 becomes the last token of the last block: scratch takes what is not stored, so that no shape
    # depends on how many rows are masked.
    slots = slot_mapping.remainder(num_blocks * block_size)
    block_ids = slots // block_size
    tokens = block_ids * (layer_kv.stride(0) // head_dim) + slots % block_size
    heads = torch.arange(2 * num_kv_heads, device=slots.device) * block_size
    return (tokens[:, None] + heads).flatten()


def _rotate(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """[num_tokens, heads, head_dim] rotated in float32, in its own type."""
    half = cos_sin.shape[-1]
    cos, sin = cos_sin[:, None].unbind(2)
    x32 = x.float()  # once; each operation with another type would do it for itself
    parts = x32.split_with_sizes((half, half, x.shape[-1] - 2 * half), dim=-1)
    pairs = x32[..., : 2 * half].view(*x.shape[:2], 2, half)
    turned = pairs * cos.unsqueeze(2)
    first, second = turned.unbind(2)
    first.addcmul_(parts[1], sin, value=-1)
    second.addcmul_(parts[0], sin)
    turned = turned.flatten(2)
    if parts[2].shape[-1]:
        turned = torch.cat((turned, parts[2]), dim=-1)
    return turned.to(x.dtype)
