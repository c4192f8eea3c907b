"""Products of a few rows with a weight, fused with the norm before and with what follows.

For decode steps on a CUDA device, where a product costs what reading its weight costs and every further launch
costs as much again on small models. All tensors are of one 16-bit type on one CUDA device unless said
otherwise; `x` is [n, in] with a dense last dimension, weights are dense [out, in]. Where measurements say that
the library's product and separate launches are faster, these are what runs (see tiles.py).

`pdl`: the launch before, on the same stream, lets this one be set up before it ends (programmatic dependent
launch, compute capability 9.0 and up).
"""

import torch

from pillion.kernels.fused_linear import tiles


def linear_float32(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None, *, pdl: bool = False
) -> torch.Tensor:
    """x @ weight.T in float32, [n, out]: a model's head. Writes: out, if it is given."""
    if pays("head", weight, x):
        from pillion.kernels.fused_linear import triton_impl

        return triton_impl.linear_float32(x, weight, out, pdl=pdl)
    from pillion.kernels.fused_linear import composed

    return composed.linear_float32(x, weight, out)


def norm_gated_linear(
    x: torch.Tensor, gain: torch.Tensor, eps: float, weight: torch.Tensor, *, pdl: bool = False
) -> torch.Tensor:
    """silu(g) * u with g, u = the halves of rms_norm(x, gain) @ weight.T; [n, out / 2]."""
    if pays("gated", weight, x):
        from pillion.kernels.fused_linear import triton_impl

        return triton_impl.norm_gated_linear(x, gain, eps, weight, pdl=pdl)
    from pillion.kernels.fused_linear import composed

    return composed.norm_gated_linear(x, gain, eps, weight)


def linear_add(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    pdl: bool = False,
) -> None:
    """residual += x @ weight.T + bias. residual [n, out]. Writes: residual."""
    if pays("add", weight, x):
        from pillion.kernels.fused_linear import triton_impl

        triton_impl.linear_add(x, weight, bias, residual, pdl=pdl)
    else:
        from pillion.kernels.fused_linear import composed

        composed.linear_add(x, weight, bias, residual)


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
    arguments = (x, gain, eps, weight, bias, cos_sin, layer_kv, slot_mapping, num_q_heads)
    if pays("qkv", weight, x) and 2 * cos_sin.shape[-1] == layer_kv.shape[-1]:
        from pillion.kernels.fused_linear import triton_impl

        return triton_impl.norm_qkv(*arguments, pdl=pdl)
    from pillion.kernels.fused_linear import composed

    return composed.norm_qkv(*arguments)


def pays(kind: tiles.Kind, weight: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether the fused product is the fastest way for these."""
    return tiles.pays(kind, weight.shape[0], weight.shape[1], x.shape[0])
