"""Every block has one owner, and the pool notices when it does not."""

import pytest

from pillion.actors.kv_manager.block_pool import BlockPool, BlockState
from pillion.runtime.errors import InvariantBroken


def test_blocks_are_leased_until_none_is_left_and_come_back() -> None:
    pool = BlockPool(3)
    assert [pool.take() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(InvariantBroken, match="no free block left of 3"):
        pool.take()
    pool.free(1, BlockState.LEASED)
    assert (pool.num_free, pool.take()) == (1, 1)
    pool.verify()


def test_a_block_passes_on_only_from_its_owner() -> None:
    pool = BlockPool(2)
    block_id = pool.take()
    pool.transfer(block_id, BlockState.LEASED, BlockState.REFERENCED)
    assert pool.counts == [1, 0, 1, 0]
    assert pool.state(block_id) is BlockState.REFERENCED
    with pytest.raises(InvariantBroken, match="from CACHED to FREE but is REFERENCED"):
        pool.free(block_id, BlockState.CACHED)
    assert pool.counts == [1, 0, 1, 0]


@pytest.mark.parametrize("block_id", [-1, 2, 2**31 - 1])
def test_ids_that_no_block_has_are_refused(block_id: int) -> None:
    pool = BlockPool(2)
    with pytest.raises(InvariantBroken, match=f"block {block_id} is not one of 0 to 1"):
        pool.state(block_id)
    with pytest.raises(InvariantBroken, match=f"block {block_id} is not one of 0 to 1"):
        pool.transfer(block_id, BlockState.FREE, BlockState.LEASED)


def test_verify_sees_a_lost_count() -> None:
    pool = BlockPool(2)
    pool.counts[BlockState.CACHED] += 1
    with pytest.raises(InvariantBroken, match=r"\[2, 0, 0, 0\], accounted for \[2, 0, 0, 1\]"):
        pool.verify()


def test_verify_sees_a_free_block_that_nobody_can_take() -> None:
    pool = BlockPool(2)
    block_id = pool.take()
    pool.transfer(block_id, BlockState.LEASED, BlockState.FREE)
    with pytest.raises(InvariantBroken, match="2 free blocks but 1 listed"):
        pool.verify()
