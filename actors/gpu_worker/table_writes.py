"""Writes to tables of slots, gathered on the host: the device gets all that a plan changes at once."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from pillion.kernels.write_tables import MAX_PIECE_WORDS, PIECE_FIELDS, Tables, write_tables


class TableWrites:
    """Takes effect at `flush`, with one copy and one launch, behind all that was launched before; nothing waits."""

    def __init__(
        self,
        upload: Callable[[npt.NDArray[np.int32]], torch.Tensor],
        tensors: Sequence[torch.Tensor],
    ) -> None:
        """`upload`: as `Device.upload`. `tensors`: the tables; see `Tables`."""
        self._upload = upload
        self._tables = Tables(tensors)
        self._numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
        # of each table: words of a value
        self._value_words = np.array([1 if each.dtype == torch.bool else 2 for each in tensors])
        # (table << 32 | slot) -> value
        self._values: dict[int, int] = {}
        # (slot, table, first word in the row, first word of what was given, words) each
        self._pieces: list[tuple[int, int, int, int, int]] = []
        self._parts: list[npt.NDArray[np.int32]] = []
        self._num_words = 0

    def set(self, table: torch.Tensor, slots: Iterable[int], values: Iterable[int]) -> None:
        """Values of a table [num_slots] of int64 or bool; what is set last for a slot counts."""
        first_key = self._numbers[id(table)] << 32
        self._values.update(zip([first_key | slot for slot in slots], values, strict=True))

    def copy(
        self, table: torch.Tensor, slot: int, first: int, words: npt.NDArray[np.int32]
    ) -> None:
        """Words [n] for a slot's row, from word `first` on: what nothing else writes until the next flush.

        They are read then.
        """
        number, at, num_words = self._numbers[id(table)], self._num_words, len(words)
        for start in range(0, num_words, MAX_PIECE_WORDS):
            length = min(num_words - start, MAX_PIECE_WORDS)
            self._pieces.append((slot, number, first + start, at + start, length))
        self._parts.append(words)
        self._num_words += num_words

    def flush(self) -> None:
        """Writes: the tables. What an error keeps from them goes with the next flush."""
        num_values, num_copied = len(self._values), len(self._pieces)
        if not num_values and not num_copied:
            return
        keys = np.fromiter(self._values, np.int64, num_values)
        values = np.fromiter(self._values.values(), np.int64, num_values)
        pieces = np.empty((num_copied + num_values, PIECE_FIELDS), dtype=np.int32)
        if num_copied:
            pieces[:num_copied] = self._pieces
        of_values = pieces[num_copied:]
        of_values[:, :2] = keys.view(np.int32).reshape(-1, 2)
        of_values[:, 2] = 0
        of_values[:, 3] = np.arange(self._num_words, self._num_words + 2 * num_values, 2)
        of_values[:, 4] = self._value_words[of_values[:, 1]]
        staged = np.concatenate([pieces.ravel(), *self._parts, values.view(np.int32)])
        write_tables(self._tables, self._upload(staged), len(pieces))
        self._values, self._pieces, self._parts, self._num_words = {}, [], [], 0
