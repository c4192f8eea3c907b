"""Launches of the kernels in triton_wide."""

import functools

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from pillion.kernels.fused_linear import triton_wide
from pillion.kernels.fused_linear.scaled import Scaled
from pillion.kernels.fused_linear.tiles import WideTile
from pillion.kernels.rms_norm.row_scale import padded_parts

# Tiles of a launch whose K is split, at most.
_MOST_TILES = 8192


@functools.lru_cache
def _arrivals(device: torch.device) -> torch.Tensor:
    """Counters of finished splits. Made once, because graphs keep the address; each launch returns them to zero."""
    return torch.zeros(_MOST_TILES, dtype=torch.int32, device=device)


def _descriptor(matrix: torch.Tensor, block_rows: int, block_k: int) -> TensorDescriptor:
    return TensorDescriptor(
        matrix, list(matrix.shape), list(matrix.stride()), [block_rows, block_k]
    )


class _Launch:
    """What all products have in common: the grid, the operands' descriptors, room for the splits."""

    def __init__(
        self, x: torch.Tensor, weight: torch.Tensor, tile: WideTile, num_tiles: int, *, two: bool
    ) -> None:
        num_rows = x.shape[0]
        rows = tile.block_rows
        row_blocks = triton.cdiv(num_rows, rows)
        self.grid = (row_blocks, num_tiles, tile.splits)
        self.x = _descriptor(x, rows, tile.block_k)
        self.weight = _descriptor(weight, tile.block_n, tile.block_k)
        self.scratch = self.arrivals = None
        if tile.splits > 1:
            if row_blocks * num_tiles > _MOST_TILES:
                raise ValueError(
                    f"{row_blocks} x {num_tiles} tiles are split; at most {_MOST_TILES}"
                )
            size = row_blocks * num_tiles * tile.splits * tile.block_n * rows * (2 if two else 1)
            self.scratch = torch.empty(size, dtype=torch.float32, device=x.device)
            self.arrivals = _arrivals(x.device)
        self._tile, self._rows = tile, rows

    def constants(self, *, pdl: bool) -> dict[str, object]:
        """Named arguments of every kernel."""
        tile = self._tile
        return {
            "ROWS": self._rows,
            "BLOCK_N": tile.block_n,
            "BLOCK_K": tile.block_k,
            "STAGES": tile.stages,
            "SPLITS": tile.splits,
            "PDL": pdl,
            "num_warps": tile.warps,
            **({"launch_pdl": True} if pdl else {}),
        }


def scale(x: torch.Tensor, gain: torch.Tensor, *, pdl: bool = False) -> Scaled:
    """What a norm of x needs, in a launch of its own."""
    num_rows, width = x.shape
    scaled = torch.empty((num_rows, width), dtype=x.dtype, device=x.device)
    squares = torch.empty((1, num_rows), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(width)
    triton_wide.scaled_kernel[(num_rows,)](
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
    launch = _Launch(x, weight, tile, num_tiles, two=is_gated)
    made = None
    if next_gain is not None:
        made = Scaled(
            torch.empty((num_rows, n_out), dtype=out.dtype, device=out.device),
            torch.empty((num_tiles, num_rows), dtype=torch.float32, device=out.device),
        )
    triton_wide.wide_linear_kernel[launch.grid](
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
    launch = _Launch(x, weight, tile, num_tiles, two=two)
    q = torch.empty((num_rows, num_q_heads, head_dim), dtype=x.dtype, device=x.device)
    triton_wide.wide_qkv_kernel[launch.grid](
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
        eps,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        PARTS=padded_parts(squares),
        BIAS=bias is not None,
        **launch.constants(pdl=pdl),
    )
    return q
