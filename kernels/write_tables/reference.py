"""The specification in torch, and the CPU path."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import torch

# Numbers that describe a piece.
PIECE_FIELDS: Final = 5


def write_tables(words: Sequence[torch.Tensor], staged: torch.Tensor, num_pieces: int) -> None:
    """See `pillion.kernels.write_tables.write_tables`; `words` are `Tables.words`."""
    described = PIECE_FIELDS * num_pieces
    pieces, values = staged[:described].view(num_pieces, PIECE_FIELDS), staged[described:]
    # Pieces of one length go to a table together.
    alike: defaultdict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for table, row, first, at, length in pieces.tolist():
        alike[table, length].append((row, first, at))
    for (table, length), places in alike.items():
        lane = torch.arange(length, device=staged.device)
        rows, firsts, ats = torch.tensor(places, device=staged.device).T.unsqueeze(-1)
        own = words[table]
        own[rows, firsts + lane] = values[ats + lane].to(own.dtype)
