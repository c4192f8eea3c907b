"""What the host says of a step with prefill rows, as one array: a captured step reads it from one place."""

from dataclasses import dataclass
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

    def sizes(self) -> list[int]:
        """Numbers in each part of the table."""
        tiles = self.num_tiles
        return [3 * self.num_rows, self.num_rows + 1, self.num_tokens, tiles, tiles]

    @property
    def size(self) -> int:
        """Numbers in the table."""
        return sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in self.sizes())


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
        parts, start = [], 0
        for size in shape.sizes():
            parts.append(array[start : start + size])
            start += -(-size // _ALIGNMENT) * _ALIGNMENT
        return cls(parts[0].reshape(3, shape.num_rows), *parts[1:])


def fill_mixed_table(
    shape: MixedShape,
    slots: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    scratch_slot: int,
) -> npt.NDArray[np.int32]:
    """The table of a step, [shape.size]. Rows are decode rows (start -1), then prefill rows."""
    array = np.zeros(shape.size, dtype=np.int32)
    table: MixedTable[npt.NDArray[np.int32]] = MixedTable.over(array, shape)
    num_rows = len(slots)
    table.rows[0], table.rows[1] = scratch_slot, -1
    table.rows[:, :num_rows] = slots, starts, lengths
    table.query_start_loc[1 : num_rows + 1] = np.cumsum(lengths)
    total = int(lengths.sum())
    table.query_start_loc[num_rows + 1 :] = total
    table.token_rows[:] = -1
    table.token_rows[:total] = np.repeat(np.arange(num_rows), lengths)
    num_decode = int((starts < 0).sum())
    tile_rows, tile_starts = cut_queries(lengths[num_decode:], num_decode, shape.num_queries)
    table.tile_rows[:] = -1
    table.tile_rows[: len(tile_rows)] = tile_rows
    table.tile_starts[: len(tile_rows)] = tile_starts
    return array
