"""The grid that every implementation is tested on."""

from dataclasses import dataclass
from typing import Final

import torch

from pillion.kernels.write_tables import MAX_PIECE_WORDS, Tables

_NUM_ROWS: Final = 40
_WIDTHS: Final = (2500, 7, 1)


@dataclass(frozen=True, slots=True)
class Inputs:
    """A case's tensors, in the order of the kernel's arguments, and the tables themselves."""

    tables: Tables
    staged: torch.Tensor
    num_pieces: int
    tensors: list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """Random pieces of random rows; a row of a table gets two that touch, if it is long enough."""

    num_written_rows: int
    dtypes: tuple[torch.dtype, ...] = (torch.int32, torch.int64, torch.bool, torch.float32)

    def inputs(self, device: torch.device) -> Inputs:
        """Tables of each type and width, full of what no piece holds."""
        generator = torch.Generator().manual_seed(self.num_written_rows)
        tensors = []
        for dtype in self.dtypes:
            for width in _WIDTHS:
                shape = (_NUM_ROWS,) if width == 1 else (_NUM_ROWS, width)
                filled = torch.full(shape, 1 if dtype == torch.bool else -7, dtype=dtype)
                tensors.append(filled.to(device))
        tables = Tables(tensors)
        pieces: list[tuple[int, int, int, int, int]] = []
        values: list[torch.Tensor] = []
        at = 0
        for number, words in enumerate(tables.words):
            width, is_flag = words.shape[1], words.dtype == torch.uint8
            order = torch.randperm(_NUM_ROWS, generator=generator)
            for row in order[: self.num_written_rows].tolist():
                bounds = torch.randint(0, width + 1, (3,), generator=generator).sort().values
                if width <= 2:
                    bounds = torch.tensor([0, 0, width])
                first, middle, last = bounds.tolist()
                for start, end in ((first, middle), (middle, last)):
                    length = min(end - start, MAX_PIECE_WORDS)
                    highest = 2 if is_flag else 1 << 30
                    new = torch.randint(0, highest, (length,), generator=generator)
                    pieces.append((row, number, start, at, length))
                    values.append(new)
                    at += length
        staged = torch.cat([torch.tensor(pieces, dtype=torch.int64).flatten(), *values])
        return Inputs(tables, staged.int().to(device), len(pieces), tensors)


CASES: Final = (
    Case(0),
    Case(1),
    Case(1, (torch.bool,)),
    Case(9),
    Case(_NUM_ROWS),
)
