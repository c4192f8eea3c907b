"""Per-slot values that the host writes when a sequence is seated and the device reads at every step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.table_writes import TableWrites


class SlotTable:
    """Rows of one type, one per slot, all `neutral` (a value or a row of values) at first.

    Writes gather on the host and go to the device together, in stream order and without a wait, when the
    table is next read, or with those of other tables. On the CPU host and device share their memory. The device
    tensor never moves.
    """

    def __init__(
        self,
        max_num_seqs: int,
        row_shape: Sequence[int],
        dtype: Any,
        neutral: npt.ArrayLike,
        device: torch.device,
    ) -> None:
        self._neutral = neutral
        # [max_num_seqs, *row_shape]
        self.host_np: npt.NDArray[Any] = np.full((max_num_seqs, *row_shape), neutral, dtype)
        # the same, as words of 4 bytes
        self._words_np = self.host_np.reshape(max_num_seqs, -1).view(np.int32)
        host = torch.from_numpy(self.host_np)
        self._shares_memory = device.type == "cpu"
        # [max_num_seqs, *row_shape]
        self.device_rows = host if self._shares_memory else host.to(device)
        self._dirty: set[int] = set()

    def write(self, slot: int, values: Any) -> None:
        """Sets a slot's row, or its first entries if `values` is shorter; the rest becomes neutral."""
        values = np.asarray(values, dtype=self.host_np.dtype)
        if values.shape != self.host_np.shape[1:]:
            self.host_np[slot] = self._neutral
            corner = tuple(slice(size) for size in values.shape)
            self.host_np[slot][corner] = values
        else:
            self.host_np[slot] = values
        self._mark(slot)

    def write_row(self, slot: int, values: Any) -> None:
        """Sets all of a slot's row."""
        self.host_np[slot] = values
        self._mark(slot)

    def clear(self, slot: int) -> None:
        """Makes a slot's row neutral."""
        self.host_np[slot] = self._neutral
        self._mark(slot)

    def rows(self) -> torch.Tensor:
        """The whole table on the device, [max_num_seqs, *row_shape]."""
        if self._dirty:
            slots = np.array(sorted(self._dirty), dtype=np.int64)
            index = upload(slots, self.device_rows.device)
            # The fancy index copies: a later write may not change what is still on its way.
            values = upload(self.host_np[slots], self.device_rows.device)
            self.device_rows.index_copy_(0, index, values)
            self._dirty.clear()
        return self.device_rows

    def stage(self, writes: TableWrites) -> None:
        """Has the writes since the last time go to the device when `writes` are flushed, before the next one here."""
        for slot in self._dirty:
            writes.copy(self.device_rows, slot, 0, self._words_np[slot])
        self._dirty.clear()

    def _mark(self, slot: int) -> None:
        if not self._shares_memory:
            self._dirty.add(slot)


def upload(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """The array on the device, in stream order and without a wait. The caller doesn't change it afterwards."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
