"""The blocks of one KV group and who owns each of them."""

from array import array
from collections import Counter
from collections.abc import Iterable
from enum import IntEnum

from pillion.runtime.errors import InvariantBroken


class BlockState(IntEnum):
    """The one owner of a block."""

    FREE = 0
    LEASED = 1  # in the scheduler's hand; a sequence may be writing to it
    REFERENCED = 2  # committed by an open sequence, maybe shared by several
    CACHED = 3  # indexed, and no open sequence has it


class BlockPool:
    """Hands out blocks and checks every change of owner.

    `counts[state]` always adds up to `num_blocks`: a block changes its owner only through `transfer`, which
    raises InvariantBroken when the block is not where the caller thinks it is.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.counts = [num_blocks, 0, 0, 0]  # by BlockState
        self._states = bytearray(num_blocks)
        # A stack: the block freed last is the one that is most likely still in a cache of the device.
        self._free = array("i", range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return self.counts[BlockState.FREE]

    def state(self, block_id: int) -> BlockState:
        """The owner of a block. Raises InvariantBroken for an id that no block has."""
        if not 0 <= block_id < self.num_blocks:
            raise InvariantBroken(f"block {block_id} is not one of 0 to {self.num_blocks - 1}")
        return BlockState(self._states[block_id])

    def take(self) -> int:
        """Leases a free block. Raises InvariantBroken when there is none."""
        if not self._free:
            raise InvariantBroken(f"no free block left of {self.num_blocks}")
        block_id = self._free.pop()
        self.transfer(block_id, BlockState.FREE, BlockState.LEASED)
        return block_id

    def free(self, block_id: int, owner: BlockState) -> None:
        """Takes a block from its owner and keeps it for the next `take`."""
        self.transfer(block_id, owner, BlockState.FREE)
        self._free.append(block_id)

    def claim(self, block_ids: Iterable[int], owner: BlockState) -> None:
        """Gives free blocks to somebody who has them already. Takes time in proportion to the pool."""
        for block_id in block_ids:
            self.transfer(block_id, BlockState.FREE, owner)
        self._free = array("i", [block_id for block_id in self._free if not self._states[block_id]])

    def transfer(self, block_id: int, old: BlockState, new: BlockState) -> None:
        """Passes a block from one owner to another. Raises InvariantBroken if `old` does not own it."""
        if not 0 <= block_id < self.num_blocks or self._states[block_id] != old:
            raise InvariantBroken(
                f"block {block_id} should pass from {old.name} to {new.name}"
                f" but is {self.state(block_id).name}"
            )
        self._states[block_id] = new
        self.counts[old] -= 1
        self.counts[new] += 1

    def verify(self) -> None:
        """Counts everything again, which takes time in proportion to the pool; for tests."""
        counted = Counter(self._states)
        recount = [counted[state] for state in BlockState]
        if recount != self.counts or sum(self.counts) != self.num_blocks:
            raise InvariantBroken(
                f"blocks per state are {recount}, accounted for {self.counts} of {self.num_blocks}"
            )
        free = set(self._free)
        if len(free) != len(self._free) or any(self._states[block_id] for block_id in free):
            raise InvariantBroken("the free list holds a block twice or one that is not free")
        if len(free) != recount[BlockState.FREE]:
            raise InvariantBroken(f"{recount[BlockState.FREE]} free blocks but {len(free)} listed")
