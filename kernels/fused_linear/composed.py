"""The same operations as several launches: for shapes and rows where the library's product is faster."""

import torch
from torch.nn.functional import linear

from pillion.kernels.fused_linear.scaled import Scaled
from pillion.kernels.rms_norm import rms_norm
from pillion.kernels.rms_norm.row_scale import RowScale
from pillion.kernels.rotary_kv_write import rotary_kv_write
from pillion.kernels.silu_and_mul import silu_and_mul


def linear_float32(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See `pillion.kernels.fused_linear.linear_float32`."""
    if x.is_cuda and x.dtype.itemsize == 2:
        return torch.mm(x, weight.T, out_dtype=torch.float32, out=out)
    product = linear(x, weight).float()
    return product if out is None else out.copy_(product)


def norm_gated_linear(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scaled: Scaled | None = None,
) -> torch.Tensor:
    """See `pillion.kernels.fused_linear.norm_gated_linear`."""
    if scaled is not None:
        row_scale = RowScale(scaled.squares, x.shape[1], eps)
        return silu_and_mul(linear(scaled.x, weight), row_scale)
    return silu_and_mul(linear(rms_norm(x, gain, eps), weight))


def linear_add(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor
) -> None:
    """See `pillion.kernels.fused_linear.linear_add`."""
    residual.addmm_(x, weight.T)
    if bias is not None:
        residual.add_(bias)


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
    scaled: Scaled | None = None,
) -> torch.Tensor:
    """See `pillion.kernels.fused_linear.norm_qkv`."""
    _, _, num_kv_heads, _, head_dim = layer_kv.shape
    row_scale = None
    if scaled is not None and bias is None:
        row_scale = RowScale(scaled.squares, x.shape[1], eps)
        qkv = linear(scaled.x, weight)
    else:
        qkv = linear(rms_norm(x, gain, eps), weight, bias)
    heads = qkv.view(-1, num_q_heads + 2 * num_kv_heads, head_dim)
    q, k, v = heads.split_with_sizes((num_q_heads, num_kv_heads, num_kv_heads), dim=1)
    return rotary_kv_write(q, k, v, cos_sin, layer_kv, slot_mapping, row_scale)
