"""Pieces of one array go to rows of several tables: what the host has changed reaches the device in one launch."""

from collections.abc import Sequence
from typing import Final

import torch

from pillion.kernels.write_tables import cpu
from pillion.kernels.write_tables.reference import PIECE_FIELDS

__all__ = ["MAX_PIECE_WORDS", "PIECE_FIELDS", "Tables", "write_tables"]

# Longer pieces are cut by the caller: a program writes one.
MAX_PIECE_WORDS: Final = 1024


class Tables:
    """Tables that `write_tables` knows by their place in a list. None of them may move."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Contiguous tensors of one device, with a row per slot; of bool, or of types with 4 or 8 bytes.

        Raises ValueError for others.
        """
        for tensor in tensors:
            has_words = tensor.dtype == torch.bool or tensor.element_size() >= 4
            if not tensor.is_contiguous() or not has_words:
                raise ValueError(f"a table of {tensor.dtype} with strides {tensor.stride()}")
        # [num_rows, words] int32 each, or [num_rows, flags] uint8; they share the tables' memory
        self.words = [_words(tensor) for tensor in tensors]
        self.is_cuda = tensors[0].is_cuda
        # the same on the CPU
        self.words_np = [] if self.is_cuda else [words.numpy() for words in self.words]
        places = [(words.data_ptr(), words.stride(0), words.element_size()) for words in self.words]
        # [num_tables, 3] int64; address, words from row to row, bytes of a word
        self.places = torch.tensor(places, device=tensors[0].device)


def write_tables(tables: Tables, staged: torch.Tensor, num_pieces: int) -> None:
    """Writes each piece to its row; no two pieces may have a word in common.

    Words have 4 bytes, those of bool tables one.

    staged  [PIECE_FIELDS * num_pieces + num_values] int32; first the pieces: row, table, first word in the
            row, first value, number of values (at most MAX_PIECE_WORDS); then all values, a word each

    Writes: the tables.
    """
    if tables.is_cuda:
        from pillion.kernels.write_tables import triton_impl

        triton_impl.write_tables(tables.places, staged, num_pieces)
    else:
        cpu.write_tables(tables.words_np, staged, num_pieces)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    rows = tensor.unsqueeze(1) if tensor.dim() == 1 else tensor.flatten(1)
    return rows.view(torch.uint8 if tensor.dtype == torch.bool else torch.int32)
