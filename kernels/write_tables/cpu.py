"""As the reference, in NumPy: an assignment of a few numbers takes torch ten times as long."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch

from pillion.kernels.write_tables.reference import PIECE_FIELDS


def write_tables(words: Sequence[npt.NDArray[Any]], staged: torch.Tensor, num_pieces: int) -> None:
    """See `pillion.kernels.write_tables.write_tables`; `words` are `Tables.words_np`."""
    described = PIECE_FIELDS * num_pieces
    numbers = staged.numpy()
    values = numbers[described:]
    for row, table, first, at, length in numbers[:described].reshape(-1, PIECE_FIELDS).tolist():
        words[table][row, first : first + length] = values[at : at + length]
