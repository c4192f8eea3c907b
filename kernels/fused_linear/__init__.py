"""Products of a few rows with a weight, fused with the norm before and with what follows.

For decode steps on a CUDA device, where a product costs what reading its weight costs and every further launch
costs as much again on small models. All tensors are of one 16-bit type on one CUDA device unless said
otherwise; `x` is [n, in] with 1 <= n <= MAX_ROWS and a dense last dimension, weights are dense [out, in].
"""

from typing import Final

import torch

MAX_ROWS: Final = 64


def norm_linear(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """rms_norm(x, gain) @ weight.T + bias, [n, out] of `out_dtype` (x's by default)."""
    from pillion.kernels.fused_linear import triton_impl

    return triton_impl.norm_linear(x, gain, eps, weight, bias, out_dtype or x.dtype, pdl=pdl)


def norm_gated_linear(
    x: torch.Tensor, gain: torch.Tensor, eps: float, weight: torch.Tensor, *, pdl: bool = False
) -> torch.Tensor:
    """silu(g) * u with g, u = the halves of rms_norm(x, gain) @ weight.T; [n, out / 2]."""
    from pillion.kernels.fused_linear import triton_impl

    return triton_impl.norm_gated_linear(x, gain, eps, weight, pdl=pdl)


def linear_add(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    pdl: bool = False,
) -> None:
    """residual += x @ weight.T + bias. residual [n, out]. Writes: residual."""
    from pillion.kernels.fused_linear import triton_impl

    triton_impl.linear_add(x, weight, bias, residual, pdl=pdl)


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
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """The rotated queries [n, num_q_heads, head_dim]; rotated keys and values go to the cache.

    weight       [(num_q_heads + 2 * num_kv_heads) * head_dim, in], with bias
    cos_sin      [n, 2, head_dim / 2] float32
    layer_kv     [num_blocks, 2, num_kv_heads, block_size, head_dim], the last three dimensions dense
    slot_mapping [n] int64; -1: not stored

    Writes: layer_kv at slot_mapping.
    """
    from pillion.kernels.fused_linear import triton_impl

    return triton_impl.norm_qkv(
        x, gain, eps, weight, bias, cos_sin, layer_kv, slot_mapping, num_q_heads, pdl=pdl
    )
