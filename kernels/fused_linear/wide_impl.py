"""Launches of the kernels in triton_wide and triton_even."""

import torch
import triton

from pillion.kernels.fused_linear.scaled import Scaled
from pillion.kernels.fused_linear.tiles import WideTile
from pillion.kernels.fused_linear.triton_even import even_linear_kernel, even_qkv_kernel
from pillion.kernels.fused_linear.triton_scaled import scaled_kernel
from pillion.kernels.fused_linear.triton_wide import wide_linear_kernel, wide_qkv_kernel
from pillion.kernels.fused_linear.wide_launch import WideLaunch
from pillion.kernels.rms_norm.row_scale import padded_parts


def scale(x: torch.Tensor, gain: torch.Tensor, *, pdl: bool = False) -> Scaled:
    """What a norm of x needs, in a launch of its own."""
    num_rows, width = x.shape
    scaled = torch.empty((num_rows, width), dtype=x.dtype, device=x.device)
    squares = torch.empty((1, num_rows), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(width)
    scaled_kernel[(num_rows,)](
        x,
        gain,
        scaled,
        squares,
        x.stride(0),
        width,
        BLOCK=block,
        PDL=pdl,
        num_warps=min(16, max(1, block // 512)),
        **({"launch_pdl": True} if pdl else {}),
    )
    return Scaled(scaled, squares)


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    tile: WideTile,
    out: torch.Tensor,
    *,
    squares: torch.Tensor | None = None,
    eps: float = 0.0,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    next_gain: torch.Tensor | None = None,
    pdl: bool,
) -> Scaled | None:
    num_rows, n_out = out.shape
    num_tiles = triton.cdiv(n_out, tile.block_n)
    is_gated = len(weight) == 2 * n_out
    launch = WideLaunch(x, weight, tile, num_tiles, two=is_gated)
    made = None
    if next_gain is not None:
        made = Scaled(
            torch.empty((num_rows, n_out), dtype=out.dtype, device=out.device),
            torch.empty((num_tiles, num_rows), dtype=torch.float32, device=out.device),
        )
    kernel = even_linear_kernel if tile.programs > 0 else wide_linear_kernel
    kernel[launch.grid](
        launch.x,
        launch.weight,
        weight,
        squares,
        bias,
        residual,
        next_gain,
        out,
        None if made is None else made.x,
        None if made is None else made.squares,
        launch.scratch,
        launch.arrivals,
        num_rows,
        0 if squares is None else len(squares),
        n_out,
        weight.shape[1],
        out.stride(0),
        tile.prefetch_bytes // 2,
        int(tile.early),
        eps,
        PARTS=0 if squares is None else padded_parts(squares),
        GATED=is_gated,
        RESIDUAL=residual is not None,
        BIAS=bias is not None,
        SCALED=made is not None,
        **launch.constants(pdl=pdl),
    )
    return made


def linear_float32(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor | None,
    tile: WideTile,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """See `pillion.kernels.fused_linear.linear_float32`."""
    if out is None:
        out = torch.empty((x.shape[0], weight.shape[0]), dtype=torch.float32, device=x.device)
    _launch(x, weight, tile, out, pdl=pdl)
    return out


def norm_gated_linear(
    scaled: Scaled, eps: float, weight: torch.Tensor, tile: WideTile, *, pdl: bool = False
) -> torch.Tensor:
    """See `pillion.kernels.fused_linear.norm_gated_linear`."""
    x = scaled.x
    out = torch.empty((x.shape[0], weight.shape[0] // 2), dtype=x.dtype, device=x.device)
    _launch(x, weight, tile, out, squares=scaled.squares, eps=eps, pdl=pdl)
    return out


def linear_add(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    next_gain: torch.Tensor | None,
    tile: WideTile,
    *,
    pdl: bool = False,
) -> Scaled | None:
    """See `pillion.kernels.fused_linear.linear_add`."""
    return _launch(
        x, weight, tile, residual, bias=bias, residual=residual, next_gain=next_gain, pdl=pdl
    )


def norm_qkv(
    scaled: Scaled,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    cos_sin: torch.Tensor,
    layer_kv: torch.Tensor,
    slot_mapping: torch.Tensor,
    num_q_heads: int,
    tile: WideTile,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """See `pillion.kernels.fused_linear.norm_qkv`."""
    x, squares = scaled
    num_rows = x.shape[0]
    _, _, num_kv_heads, block_size, head_dim = layer_kv.shape
    two = tile.block_n < head_dim
    num_tiles = triton.cdiv(len(weight), tile.block_n * (2 if two else 1))
    launch = WideLaunch(x, weight, tile, num_tiles, two=two)
    q = torch.empty((num_rows, num_q_heads, head_dim), dtype=x.dtype, device=x.device)
    kernel = even_qkv_kernel if tile.programs > 0 else wide_qkv_kernel
    kernel[launch.grid](
        launch.x,
        launch.weight,
        weight,
        squares,
        bias,
        cos_sin,
        slot_mapping,
        q,
        layer_kv,
        launch.scratch,
        launch.arrivals,
        num_rows,
        len(squares),
        weight.shape[1],
        layer_kv.stride(0),
        layer_kv.stride(1),
        layer_kv.stride(2),
        num_q_heads,
        num_kv_heads,
        tile.prefetch_bytes // 2,
        int(tile.early),
        eps,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        PARTS=padded_parts(squares),
        BIAS=bias is not None,
        **launch.constants(pdl=pdl),
    )
    return q
