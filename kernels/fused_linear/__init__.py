"""Products of a few rows with a weight, fused with the norm before and with what follows.

For decode steps on a CUDA device, where a product costs what reading its weight costs and every further launch
costs as much again on small models. All tensors are of one 16-bit type on one CUDA device unless said
otherwise; `x` is [n, in] with a dense last dimension, weights are dense [out, in]. Where measurements say that
the library's product and separate launches are faster, these are what runs (see tiles.py).

`pdl`: the launch before, on the same stream, lets this one be set up before it ends (programmatic dependent
launch, compute capability 9.0 and up).
`scaled`: what `linear_add` returned when it wrote x last, with this norm's gain; None: x as it is will do.
"""

import functools
from typing import Any

import torch

from pillion.kernels.fused_linear import tiles
from pillion.kernels.fused_linear.scaled import Scaled
from pillion.kernels.fused_linear.tiles import Tile, WideTile

__all__ = [
    "Scaled",
    "linear_add",
    "linear_float32",
    "norm_gated_linear",
    "norm_qkv",
    "takes_scaled",
]

# What a program of a WideTile may need: Hopper's.
_SHARED_BYTES = 227 << 10


def linear_float32(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None, *, pdl: bool = False
) -> torch.Tensor:
    """x @ weight.T in float32, [n, out]: a model's head. Writes: out, if it is given."""
    choice = _choose("head", weight, len(x))
    if isinstance(choice, WideTile):
        from pillion.kernels.fused_linear import wide_impl

        return wide_impl.linear_float32(x, weight, out, choice, pdl=pdl)
    if choice is not None:
        from pillion.kernels.fused_linear import triton_impl

        return triton_impl.linear_float32(x, weight, out, pdl=pdl, tile=choice)
    from pillion.kernels.fused_linear import composed

    return composed.linear_float32(x, weight, out)


def norm_gated_linear(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scaled: Scaled | None = None,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """silu(g) * u with g, u = the halves of rms_norm(x, gain) @ weight.T; [n, out / 2]."""
    choice = _choose("gated", weight, len(x))
    if isinstance(choice, WideTile):
        from pillion.kernels.fused_linear import wide_impl

        scaled = scaled or wide_impl.scale(x, gain, pdl=pdl)
        return wide_impl.norm_gated_linear(scaled, eps, weight, choice, pdl=pdl)
    if choice is not None:
        from pillion.kernels.fused_linear import triton_impl

        return triton_impl.norm_gated_linear(x, gain, eps, weight, pdl=pdl, tile=choice)
    from pillion.kernels.fused_linear import composed

    return composed.norm_gated_linear(x, gain, eps, weight, scaled)


def linear_add(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    next_gain: torch.Tensor | None = None,
    *,
    pdl: bool = False,
) -> Scaled | None:
    """residual += x @ weight.T + bias. residual [n, out]. Writes: residual.

    Returns what a norm of the residual with `next_gain` needs, where this comes at no further cost.
    """
    choice = _choose("add", weight, len(x))
    if isinstance(choice, WideTile):
        from pillion.kernels.fused_linear import wide_impl

        return wide_impl.linear_add(x, weight, bias, residual, next_gain, choice, pdl=pdl)
    if choice is not None:
        from pillion.kernels.fused_linear import triton_impl

        triton_impl.linear_add(x, weight, bias, residual, pdl=pdl, tile=choice)
    else:
        from pillion.kernels.fused_linear import composed

        composed.linear_add(x, weight, bias, residual)
    return None


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
    choice = _choose("qkv", weight, len(x))
    head_dim = layer_kv.shape[-1]
    if 2 * cos_sin.shape[-1] != head_dim:
        choice = None
    rest = (eps, weight, bias, cos_sin, layer_kv, slot_mapping, num_q_heads)
    if isinstance(choice, WideTile) and choice.cuts_heads(head_dim):
        from pillion.kernels.fused_linear import wide_impl

        scaled = scaled or wide_impl.scale(x, gain, pdl=pdl)
        return wide_impl.norm_qkv(scaled, *rest, choice, pdl=pdl)
    if isinstance(choice, Tile):
        from pillion.kernels.fused_linear import triton_impl

        return triton_impl.norm_qkv(x, gain, *rest, pdl=pdl, tile=choice)
    from pillion.kernels.fused_linear import composed

    if weight.dtype == torch.float16:
        scaled = None  # takes_scaled may have counted on a tile that doesn't suit these heads
    return composed.norm_qkv(x, gain, *rest, scaled)


def takes_scaled(kind: tiles.Kind, weight: torch.Tensor, num_rows: int) -> bool:
    """Whether a product of so many rows behind a norm goes without the norm where x comes with its `Scaled`.

    The library's product rounds before rows are divided, for which only bfloat16 has the range.
    """
    choice = _choose(kind, weight, num_rows)
    return isinstance(choice, WideTile) or (choice is None and weight.dtype == torch.bfloat16)


def _choose(kind: tiles.Kind, weight: torch.Tensor, num_rows: int) -> tiles.Choice:
    choice = tiles.choose(kind, weight.shape[0], weight.shape[1], num_rows)
    if isinstance(choice, WideTile) and not _runs_wide(weight.device):
        return None
    return choice


@functools.lru_cache
def _runs_wide(device: torch.device) -> bool:
    """Whether a device has what the measured WideTiles use; Triton's interpreter has."""
    if device.type != "cuda":
        return True
    found: Any = torch.cuda.get_device_properties(device)
    return bool(found.major >= 9 and found.shared_memory_per_block_optin >= _SHARED_BYTES)
