"""The specification in torch."""

import torch
from torch.nn.functional import linear, silu


def _norm(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    x32 = x.float()
    scale = torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
    return (x32 * scale * gain.float()).to(x.dtype)


def linear_float32(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See `pillion.kernels.fused_linear.linear_float32`."""
    return torch.matmul(x.float(), weight.float().T, out=out)


def norm_gated_linear(
    x: torch.Tensor, gain: torch.Tensor, eps: float, weight: torch.Tensor
) -> torch.Tensor:
    """See `pillion.kernels.fused_linear.norm_gated_linear`."""
    gate, up = linear(_norm(x, gain, eps), weight).chunk(2, dim=-1)
    return silu(gate) * up


def linear_add(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor
) -> None:
    """See `pillion.kernels.fused_linear.linear_add`."""
    residual.add_(linear(x, weight, bias))


def norm_qkv(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    cos_sin: torch.Tensor,
    layer_kv: torch.Tensor,
    slot_mapping: torch.Tensor,
    num_q_heads: int,
) -> torch.Tensor:
    """See `pillion.kernels.fused_linear.norm_qkv`."""
    _, _, num_kv_heads, block_size, head_dim = layer_kv.shape
    qkv = linear(_norm(x, gain, eps), weight, bias).float()
    heads = qkv.view(-1, num_q_heads + 2 * num_kv_heads, head_dim)
    cos, sin = cos_sin[:, None, 0], cos_sin[:, None, 1]
    first, second = heads[:, : num_q_heads + num_kv_heads].chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    stored = slot_mapping >= 0
    slots = slot_mapping[stored]
    key = rotated[stored, num_q_heads:].to(layer_kv.dtype)
    value = heads[stored, num_q_heads + num_kv_heads :].to(layer_kv.dtype)
    layer_kv[slots // block_size, 0, :, slots % block_size] = key
    layer_kv[slots // block_size, 1, :, slots % block_size] = value
    return rotated[:, :num_q_heads].to(x.dtype)
