"""The recount of a group notices what would otherwise be lost."""

from collections.abc import Callable

import pytest

from pillion.actors.kv_manager.block_pool import BlockState
from pillion.actors.kv_manager.groups import KvGroup
from pillion.actors.kv_manager.prefix_index import Node
from pillion.messages.control import KvGroupGeometry
from pillion.runtime.errors import InvariantBroken


def group_with_two_cached_blocks() -> tuple[KvGroup, Node, Node]:
    group = KvGroup(
        KvGroupGeometry(
            kind="full_attention", num_layers=1, num_blocks=4, block_size_tokens=8, block_bytes=1
        )
    )
    group.num_owed = 2
    first, second = group.lease()
    parent = group.commit("", b"parent", None, first)
    child = group.commit("", b"child", parent, second)
    group.release(child, second)
    group.release(parent, first)
    group.verify()
    return group, parent, child


def wrong_order(group: KvGroup, parent: Node, child: Node) -> None:
    group.idle.remove(child)
    group.idle.push(child)


def used_but_idle(group: KvGroup, parent: Node, child: Node) -> None:
    child.users = 1


def lost_node(group: KvGroup, parent: Node, child: Node) -> None:
    group.idle.remove(child)


def same_block_twice(group: KvGroup, parent: Node, child: Node) -> None:
    child.block_id = parent.block_id


def orphan(group: KvGroup, parent: Node, child: Node) -> None:
    group.idle.remove(parent)
    group.index.remove(parent)
    group.pool.free(parent.block_id, BlockState.CACHED)


def idle_with_duplicates(group: KvGroup, parent: Node, child: Node) -> None:
    child.duplicates = [3]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (wrong_order, "would be evicted before its child"),
        (used_but_idle, "with 1 users is CACHED"),
        (lost_node, "1 idle nodes, 2 cached blocks"),
        (same_block_twice, "two nodes have the same block"),
        (orphan, "the parent of block 1 is not indexed"),
        (idle_with_duplicates, "has duplicates"),
    ],
)
def test_verify_sees_spoiled_books(spoil: Callable[[KvGroup, Node, Node], None], says: str) -> None:
    group, parent, child = group_with_two_cached_blocks()
    spoil(group, parent, child)
    with pytest.raises(InvariantBroken, match=says):
        group.verify()


def test_an_eviction_out_of_order_ends_the_actor() -> None:
    group, parent, child = group_with_two_cached_blocks()
    wrong_order(group, parent, child)
    group.num_owed = 4
    with pytest.raises(InvariantBroken, match="evicted before its children"):
        group.lease()


def test_verify_uses_sees_blocks_that_no_sequence_has() -> None:
    group, parent, _ = group_with_two_cached_blocks()
    group.reference([parent])
    group.verify_uses({parent.block_id}, 1)
    with pytest.raises(InvariantBroken, match="1 blocks are referenced"):
        group.verify_uses(set(), 0)
    with pytest.raises(InvariantBroken, match="is not referenced"):
        group.verify_uses({3}, 1)
    for num_uses in (0, 2):
        with pytest.raises(InvariantBroken, match=f"1 users counted, {num_uses} found"):
            group.verify_uses({parent.block_id}, num_uses)


def held_group(*block_ids: int) -> tuple[KvGroup, list[Node]]:
    """Sequences that have had these blocks, all with one content, since before the group began."""
    group = KvGroup(
        KvGroupGeometry(
            kind="full_attention", num_layers=1, num_blocks=4, block_size_tokens=8, block_bytes=1
        )
    )
    group.pool.claim(set(block_ids), BlockState.REFERENCED)
    nodes = [group.hold("", b"content", None, block_id) for block_id in block_ids]
    group.verify()
    group.verify_uses(set(block_ids), sum(id_ == nodes[0].block_id for id_ in block_ids))
    return group, nodes


@pytest.mark.parametrize("block_ids", [(2,), (2, 2), (2, 3), (2, 2, 3), (3, 2, 2), (2, 3, 2, 1)])
def test_blocks_that_are_held_end_as_cached_once(block_ids: tuple[int, ...]) -> None:
    group, nodes = held_group(*block_ids)
    assert len(set(nodes)) == 1
    for node, block_id in zip(nodes, block_ids, strict=True):
        group.release(node, block_id)
    group.verify()
    assert group.pool.counts == [3, 0, 0, 1]
    group.num_owed = 4
    assert sorted(group.lease()) == [0, 1, 2, 3]


def test_two_shared_blocks_with_one_content_cannot_be() -> None:
    with pytest.raises(InvariantBroken, match="blocks 2 and 3 have one content"):
        held_group(2, 2, 3, 3)
