"""The specification in torch."""

from collections.abc import Sequence
from typing import Final

import torch

# Numbers that describe a piece.
PIECE_FIELDS: Final = 5


def write_tables(words: Sequence[torch.Tensor], staged: torch.Tensor, num_pieces: int) -> None:
    """See `pillion.kernels.write_tables.write_tables`; `words` are `Tables.words`."""
    described = PIECE_FIELDS * num_pieces
    pieces, values = staged[:described].view(num_pieces, PIECE_FIELDS), staged[described:]
    for row, table, first, at, length in pieces.tolist():
        words[table][row, first : first + length] = values[at : at + length]
