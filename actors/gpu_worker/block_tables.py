"""Which KV blocks each slot owns, in order: on the device for the kernels, counted on the host."""

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.device import Device
from pillion.runtime.errors import InvariantBroken


class BlockTables:
    """One row of block ids per slot, and a scratch row behind them.

    Writes to the device are ordered behind the steps that were launched before.
    """

    def __init__(
        self,
        device: Device,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        num_blocks: int,
    ) -> None:
        self._device = device
        self._num_blocks = num_blocks
        self.block_size = block_size
        self.max_blocks = -(-max_model_len // block_size)
        # [max_num_seqs + 1, max_blocks] int32; beyond a slot's blocks: 0 or what a former tenant had
        self.table = torch.zeros(
            (max_num_seqs + 1, self.max_blocks), dtype=torch.int32, device=device.device
        )
        # [max_num_seqs + 1] int64; tokens that a slot's blocks hold
        self.capacity = torch.zeros(max_num_seqs + 1, dtype=torch.int64, device=device.device)
        self.capacity_np = np.zeros(max_num_seqs, dtype=np.int64)

    def append(self, slots: npt.NDArray[np.int32], block_ids: npt.NDArray[np.int32]) -> None:
        """Adds blocks at the ends of slots' tables; parallel columns, a slot may appear many times.

        Raises InvariantBroken for a block that isn't in the pool or a table that is full.
        """
        if len(slots) == 0:
            return
        if block_ids.min() < 0 or block_ids.max() >= self._num_blocks:
            raise InvariantBroken(
                f"block ids {block_ids.min()}..{block_ids.max()} in a pool of {self._num_blocks}"
            )
        columns = self._next_columns(slots)
        if columns.max() >= self.max_blocks:
            slot = slots[columns.argmax()]
            raise InvariantBroken(f"slot {slot} gets more than {self.max_blocks} blocks")
        np.maximum.at(self.capacity_np, slots, (columns + 1) * self.block_size)
        device_slots = self._device.upload_int64(slots)
        self.table[device_slots, self._device.upload_int64(columns)] = self._device.upload(
            block_ids.copy()
        )
        self.capacity[device_slots] = self._device.upload_int64(self.capacity_np[slots])

    def clear(self, slots: npt.NDArray[np.int32]) -> None:
        """Takes all blocks from these slots."""
        self.capacity_np[slots] = 0
        self.capacity.index_fill_(0, self._device.upload_int64(slots), 0)

    def blocks_for(self, num_tokens: int) -> int:
        """That so many tokens need."""
        return -(-num_tokens // self.block_size)

    def of(self, slots: torch.Tensor, max_seq_len: int) -> torch.Tensor:
        """[num_rows, blocks that max_seq_len tokens need] int32."""
        return self.table[:, : self.blocks_for(max_seq_len)].index_select(0, slots)

    def _next_columns(self, slots: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """The table column of each appended block: the slot's length plus earlier mentions in `slots`."""
        order = np.argsort(slots, kind="stable")
        grouped = slots[order]
        starts = np.flatnonzero(np.r_[True, grouped[1:] != grouped[:-1]])
        lengths = np.diff(np.r_[starts, len(grouped)])
        nth = np.arange(len(grouped)) - np.repeat(starts, lengths)
        columns = np.empty(len(slots), dtype=np.int64)
        columns[order] = self.capacity_np[grouped] // self.block_size + nth
        return columns
