"""Which KV blocks each slot owns, in order: on the device for the kernels, counted on the host."""

import itertools

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.table_writes import TableWrites
from pillion.runtime.errors import InvariantBroken


class BlockTables:
    """One row of block ids per slot, and a scratch row behind them.

    What changes is counted on the host at once, and on the device when the TableWrites that it is given to are flushed.
    """

    def __init__(
        self,
        device: Device,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        num_blocks: int,
    ) -> None:
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

    def append(
        self, slots: npt.NDArray[np.int32], block_ids: npt.NDArray[np.int32], writes: TableWrites
    ) -> None:
        """Adds blocks at the ends of slots' tables; parallel columns, a slot may appear many times.

        Raises InvariantBroken for a block that isn't in the pool or a table that is full.
        """
        if len(slots) == 0:
            return
        # A negative number is a large one without its sign.
        if block_ids.view(np.uint32).max() >= self._num_blocks:
            raise InvariantBroken(
                f"block ids {block_ids.min()}..{block_ids.max()} in a pool of {self._num_blocks}"
            )
        order = slots.argsort(kind="stable")
        grouped, blocks = slots[order], block_ids[order]
        ends = (grouped[1:] != grouped[:-1]).nonzero()[0] + 1
        bounds = [0, *ends.tolist(), len(grouped)]
        owners = grouped[bounds[:-1]]
        capacities = self.capacity_np[owners]
        firsts, capacities = (
            capacities // self.block_size,
            capacities + np.diff(bounds) * self.block_size,
        )
        most = self.max_blocks * self.block_size
        if capacities.max() > most:
            slot = owners[capacities.argmax()]
            raise InvariantBroken(f"slot {slot} gets more than {self.max_blocks} blocks")
        self.capacity_np[owners] = capacities
        owners_list = owners.tolist()
        writes.set(self.capacity, owners_list, capacities.tolist())
        pieces = zip(owners_list, firsts.tolist(), itertools.pairwise(bounds), strict=True)
        for slot, first, (start, end) in pieces:
            writes.copy(self.table, slot, first, blocks[start:end])

    def clear(self, slots: npt.NDArray[np.int32], writes: TableWrites) -> None:
        """Takes all blocks from these slots."""
        self.capacity_np[slots] = 0
        writes.set(self.capacity, slots.tolist(), [0] * len(slots))

    def blocks_for(self, num_tokens: int) -> int:
        """That so many tokens need."""
        return -(-num_tokens // self.block_size)

    def of(self, slots: torch.Tensor, max_seq_len: int) -> torch.Tensor:
        """[num_rows, blocks that max_seq_len tokens need] int32."""
        return self.table[:, : self.blocks_for(max_seq_len)].index_select(0, slots)
