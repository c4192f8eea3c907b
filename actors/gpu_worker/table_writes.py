"""Writes to tables of slots, gathered on the host: the device gets all that a plan changes at once."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.device import Device
from pillion.kernels.write_tables import MAX_PIECE_WORDS, PIECE_FIELDS, Tables, write_tables


class TableWrites:
    """Takes effect at `flush`, with one copy and one launch, behind all that was launched before; nothing waits."""

    def __init__(self, device: Device, tensors: Sequence[torch.Tensor]) -> None:
        """`tensors`: the tables; see `Tables`."""
        self._device = device
        self._tables = Tables(tensors)
        self._numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
        # of each table of single values: slot -> value
        self._values: list[dict[int, int]] = [{} for _ in tensors]
        self._value_types = [
            np.int32 if tensor.dtype == torch.bool else np.int64 for tensor in tensors
        ]
        self._pieces: list[tuple[int, int, int, int, int]] = []
        self._parts: list[npt.NDArray[np.int32]] = []
        self._num_words = 0

    def set(self, table: torch.Tensor, slots: Sequence[int], values: Sequence[int]) -> None:
        """Values of a table [num_slots] of int64 or bool; what is set last for a slot counts."""
        self._values[self._numbers[id(table)]].update(zip(slots, values, strict=True))

    def copy(
        self, table: torch.Tensor, slot: int, first: int, words: npt.NDArray[np.int32]
    ) -> None:
        """Words [n] for a slot's row, from word `first` on: what nothing else writes until the next flush."""
        number = self._numbers[id(table)]
        for start in range(0, len(words), MAX_PIECE_WORDS):
            length = min(len(words) - start, MAX_PIECE_WORDS)
            self._pieces.append((number, slot, first + start, self._num_words + start, length))
        self._parts.append(words)
        self._num_words += len(words)

    def flush(self) -> None:
        """Writes: the tables."""
        pieces, parts, at = self._pieces, self._parts, self._num_words
        all_values = [(number, found) for number, found in enumerate(self._values) if found]
        if not pieces and not all_values:
            return
        self._pieces, self._parts, self._num_words = [], [], 0
        described = [np.array(pieces, dtype=np.int32).reshape(-1, PIECE_FIELDS)]
        for number, found in all_values:
            self._values[number] = {}
            slots = np.fromiter(found, np.int32, len(found))
            values = np.fromiter(found.values(), self._value_types[number], len(found))
            words = values.view(np.int32)
            described.append(_of_values(number, slots, at, len(words) // len(slots)))
            parts.append(words)
            at += len(words)
        staged = np.concatenate([*(piece.ravel() for piece in described), *parts])
        write_tables(self._tables, self._device.upload(staged), sum(map(len, described)))


def _of_values(
    number: int, slots: npt.NDArray[np.int32], at: int, words_each: int
) -> npt.NDArray[np.int32]:
    """Pieces [n, PIECE_FIELDS] of one value each, which lie one behind the other from word `at` on."""
    pieces = np.zeros((len(slots), PIECE_FIELDS), dtype=np.int32)
    pieces[:, 0], pieces[:, 1], pieces[:, 4] = number, slots, words_each
    pieces[:, 3] = np.arange(at, at + len(slots) * words_each, words_each)
    return pieces
