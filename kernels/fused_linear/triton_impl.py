"""Launches of the kernels in triton_skinny."""

import torch
import triton

from pillion.kernels.fused_linear.tiles import Kind, Tile, default_tile, padded_rows
from pillion.kernels.fused_linear.triton_skinny import skinny_linear_kernel, skinny_qkv_kernel


def _block_rows(num_rows: int, tile: Tile) -> int:
    """Rows that a program takes: a power of two."""
    return min(1 << (padded_rows(num_rows) - 1).bit_length(), tile.block_rows)


def _pdl_option(pdl: bool) -> dict[str, bool]:
    return {"launch_pdl": True} if pdl else {}


def _launch(
    kind: Kind,
    x: torch.Tensor,
    weight: torch.Tensor,
    gain: torch.Tensor | None,
    eps: float,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    tile: Tile | None,
    pdl: bool,
) -> None:
    num_rows, k = x.shape
    n_out = out.shape[1]
    tile = tile or default_tile(kind, weight.shape[0], k, padded_rows(num_rows))
    rows = _block_rows(num_rows, tile)
    skinny_linear_kernel[(triton.cdiv(n_out, tile.block_n), triton.cdiv(num_rows, rows))](
        x,
        weight,
        gain,
        bias,
        residual,
        out,
        num_rows,
        n_out,
        x.stride(0),
        out.stride(0),
        tile.prefetch_bytes // 2,
        int(tile.early),
        eps,
        K=k,
        ROWS=rows,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        STAGES=tile.stages,
        NORM=gain is not None,
        GATED=kind == "gated",
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        PDL=pdl,
        num_warps=tile.warps,
        **_pdl_option(pdl),
    )


def linear_float32(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    pdl: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """See `pillion.kernels.fused_linear.linear_float32`."""
    if out is None:
        out = torch.empty((x.shape[0], weight.shape[0]), dtype=torch.float32, device=x.device)
    _launch("head", x, weight, None, 0.0, None, None, out, tile, pdl)
    return out


def norm_gated_linear(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    *,
    pdl: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """See `pillion.kernels.fused_linear.norm_gated_linear`."""
    out = torch.empty((x.shape[0], weight.shape[0] // 2), dtype=x.dtype, device=x.device)
    _launch("gated", x, weight, gain, eps, None, None, out, tile, pdl)
    return out


def linear_add(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    pdl: bool = False,
    tile: Tile | None = None,
) -> None:
    """See `pillion.kernels.fused_linear.linear_add`."""
    _launch("add", x, weight, None, 0.0, bias, residual, residual, tile, pdl)


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
    tile: Tile | None = None,
) -> torch.Tensor:
    """See `pillion.kernels.fused_linear.norm_qkv`."""
    num_rows, k = x.shape
    _, _, num_kv_heads, block_size, head_dim = layer_kv.shape
    tile = tile or default_tile("qkv", weight.shape[0], k, padded_rows(num_rows))
    rows = _block_rows(num_rows, tile)
    block_h = min(tile.block_n, triton.next_power_of_2(head_dim // 2))
    q = torch.empty((num_rows, num_q_heads, head_dim), dtype=x.dtype, device=x.device)
    num_tiles = triton.cdiv(head_dim // 2, block_h) * (num_q_heads + 2 * num_kv_heads)
    grid = (num_tiles, triton.cdiv(num_rows, rows))
    skinny_qkv_kernel[grid](
        x,
        weight,
        gain,
        bias,
        cos_sin,
        slot_mapping,
        q,
        layer_kv,
        num_rows,
        x.stride(0),
        q.stride(0),
        layer_kv.stride(0),
        layer_kv.stride(1),
        layer_kv.stride(2),
        tile.prefetch_bytes // 2,
        int(tile.early),
        eps,
        K=k,
        NUM_Q_HEADS=num_q_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        ROWS=rows,
        BLOCK_H=block_h,
        BLOCK_K=tile.block_k,
        STAGES=tile.stages,
        BIAS=bias is not None,
        PDL=pdl,
        num_warps=tile.warps,
        **_pdl_option(pdl),
    )
    return q
