"""What the host says of a step with prefill rows, as one array: a captured step reads it from one place."""

import itertools
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pillion.kernels.paged_attention import cut_queries

ArrayT = TypeVar("ArrayT", bound=Any)

# Parts begin at multiples of so many numbers, so that kernels find them aligned.
_ALIGNMENT: Final = 32
_FEW_TOKENS: Final = 1024


class MixedShape(NamedTuple):
    """How many tokens, rows and prefill rows a step has room for."""

    num_tokens: int
    num_rows: int
    num_prefill_rows: int

    def has_room(self, num_tokens: int, num_rows: int, num_prefill_rows: int) -> bool:
        """For a step of so many."""
        return (
            self.num_tokens >= num_tokens
            and self.num_rows >= num_rows
            and self.num_prefill_rows >= num_prefill_rows
        )

    @property
    def num_queries(self) -> int:
        """Queries of one piece of a prefill row."""
        return 64 if self.num_tokens <= _FEW_TOKENS else 128

    @property
    def num_tiles(self) -> int:
        """Pieces, if each row has one that is not full."""
        return self.num_tokens // self.num_queries + self.num_prefill_rows

    @property
    def size(self) -> int:
        """Numbers in the table."""
        return _aligned(_parts(self)[-1].stop)


# Of a captured step: its decode rows, or what one with prefill rows has room for.
GraphSize = int | MixedShape


@dataclass(frozen=True, slots=True)
class MixedTable(Generic[ArrayT]):
    """Views into one array of int32, of NumPy or torch."""

    # [3, num_rows]; slot, first position (-1: a decode row), tokens (0: padding)
    rows: ArrayT
    # [num_rows + 1]; first token of each row
    query_start_loc: ArrayT
    # [num_tokens]; the row of each token, -1: padding
    token_rows: ArrayT
    # [num_tiles] each; see PrefillTiles
    tile_rows: ArrayT
    tile_starts: ArrayT

    @classmethod
    def over(cls, array: ArrayT, shape: MixedShape) -> "MixedTable[ArrayT]":
        """The parts of an array of `shape.size` numbers."""
        rows, *parts = (array[part] for part in _parts(shape))
        return cls(rows.reshape(3, shape.num_rows), *parts)


def _aligned(number: int) -> int:
    return -(-number // _ALIGNMENT) * _ALIGNMENT


@cache
def _parts(shape: MixedShape) -> tuple[slice, ...]:
    """Where each part of a table is."""
    tiles = shape.num_tiles
    sizes = (3 * shape.num_rows, shape.num_rows + 1, shape.num_tokens, tiles, tiles)
    starts = itertools.accumulate(map(_aligned, sizes), initial=0)
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=False))


def fill_mixed_table(
    shape: MixedShape,
    slots: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    scratch_slot: int,
) -> npt.NDArray[np.int32]:
    """The table of a step, [shape.size]. Rows are decode rows (start -1), then prefill rows."""
    array = np.full(shape.size, -1, dtype=np.int32)
    table: MixedTable[npt.NDArray[np.int32]] = MixedTable.over(array, shape)
    num_rows, num_decode = len(slots), int(np.count_nonzero(starts < 0))
    table.rows[0], table.rows[2] = scratch_slot, 0
    table.rows[0, :num_rows] = slots
    table.rows[1, :num_rows] = starts
    table.rows[2, :num_rows] = lengths
    ends = lengths.cumsum()
    total = int(ends[-1]) if num_rows else 0
    table.query_start_loc[0] = 0
    table.query_start_loc[1 : num_rows + 1] = ends
    table.query_start_loc[num_rows + 1 :] = total
    table.token_rows[:total] = np.arange(num_rows, dtype=np.int32).repeat(lengths)
    tile_rows, tile_starts = cut_queries(lengths[num_decode:], num_decode, shape.num_queries)
    table.tile_rows[: len(tile_rows)] = tile_rows
    table.tile_starts[: len(tile_rows)] = tile_starts
    return array
