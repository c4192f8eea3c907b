"""What all launches of products on a `Scaled` stream have in common."""

import functools

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from pillion.kernels.fused_linear.tiles import WideTile

# Tiles of a launch whose programs share some, at most.
_MOST_TILES = 8192


@functools.lru_cache
def _arrivals(device: torch.device) -> torch.Tensor:
    """Counters of finished parts. Made once, because graphs keep the address; each launch returns them to zero."""
    return torch.zeros(_MOST_TILES, dtype=torch.int32, device=device)


def _descriptor(matrix: torch.Tensor, block_rows: int, block_k: int) -> TensorDescriptor:
    return TensorDescriptor(
        matrix, list(matrix.shape), list(matrix.stride()), [block_rows, block_k]
    )


class WideLaunch:
    """The grid, the operands' descriptors, and room for the parts of tiles that several programs share.

    `num_tiles` are those of the weight; `two`: of a pair of products.
    """

    def __init__(
        self, x: torch.Tensor, weight: torch.Tensor, tile: WideTile, num_tiles: int, *, two: bool
    ) -> None:
        row_blocks = triton.cdiv(x.shape[0], tile.block_rows)
        all_tiles = row_blocks * num_tiles
        self.x = _descriptor(x, tile.block_rows, tile.block_k)
        self.weight = _descriptor(weight, tile.block_n, tile.block_k)
        self.scratch = self.arrivals = None
        self.grid: tuple[int, ...] = (row_blocks, num_tiles, tile.splits)
        num_parts = all_tiles * tile.splits if tile.splits > 1 else 0
        if tile.programs > 0:
            if tile.splits > 1:
                raise ValueError(f"{tile}: programs that share the work leave no splits")
            programs = min(tile.programs, all_tiles * triton.cdiv(weight.shape[1], tile.block_k))
            self.grid, num_parts = (programs,), 2 * programs
        if num_parts > 0:
            if all_tiles > _MOST_TILES:
                raise ValueError(
                    f"{row_blocks} x {num_tiles} tiles are shared; at most {_MOST_TILES}"
                )
            size = num_parts * tile.block_n * tile.block_rows * (2 if two else 1)
            self.scratch = torch.empty(size, dtype=torch.float32, device=x.device)
            self.arrivals = _arrivals(x.device)
        self._tile = tile

    def constants(self, *, pdl: bool) -> dict[str, object]:
        """Named arguments of every kernel."""
        tile = self._tile
        return {
            "ROWS": tile.block_rows,
            "BLOCK_N": tile.block_n,
            "BLOCK_K": tile.block_k,
            "STAGES": tile.stages,
            **({} if tile.programs > 0 else {"SPLITS": tile.splits}),
            "PDL": pdl,
            "num_warps": tile.warps,
            **({"launch_pdl": True} if pdl else {}),
        }
