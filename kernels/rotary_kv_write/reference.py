"""The specification in torch, and the CPU path."""

import torch


def rotary_kv_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor,
    layer_kv: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    """See `pillion.kernels.rotary_kv_write.rotary_kv_write`."""
    cos, sin = cos_sin[:, None, 0], cos_sin[:, None, 1]
    block_size = layer_kv.shape[3]
    # Floor division sends -1 to the last row of the last block: scratch takes what is not stored, so
    # that no shape depends on how many rows are masked.
    block_ids = slot_mapping.div(block_size, rounding_mode="floor")
    offsets = slot_mapping.remainder(block_size)
    layer_kv[block_ids, 0, :, offsets] = _rotate(k, cos, sin).to(layer_kv.dtype)
    layer_kv[block_ids, 1, :, offsets] = v.to(layer_kv.dtype)
    return _rotate(q, cos, sin)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """[num_tokens, heads, head_dim] rotated in float32, in its own type."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    rotated = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat([part.to(x.dtype) for part in rotated] + [rest], dim=-1)
