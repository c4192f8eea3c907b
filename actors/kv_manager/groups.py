"""One KV group: its blocks, what is cached in them, and what the scheduler is still owed."""

from typing import Final

from pillion.actors.kv_manager.block_pool import BlockPool, BlockState
from pillion.actors.kv_manager.eviction import EvictedPrefixes, IdleNodes
from pillion.actors.kv_manager.prefix_index import Node, PrefixIndex
from pillion.messages.control import KvGroupGeometry
from pillion.runtime.errors import InvariantBroken

KINDS: Final = ("full_attention",)
# About 100 bytes each: at most 7 MB per group.
MAX_REMEMBERED_EVICTIONS: Final = 65_536


class KvGroup:
    """Layers with the same cache shape and lifetime.

    A block is free, leased to the scheduler, referenced by sequences, or cached: indexed and idle. Every
    node with users is in the index and every idle node can be evicted, so `num_available` is exact.
    """

    def __init__(self, geometry: KvGroupGeometry) -> None:
        if geometry.kind not in KINDS:
            raise InvariantBroken(
                f"KV group kind {geometry.kind!r} is not one of {', '.join(KINDS)}"
            )
        if geometry.num_blocks < 1 or geometry.block_size_tokens < 1:
            raise InvariantBroken(
                f"a KV group of {geometry.num_blocks} blocks of {geometry.block_size_tokens} tokens"
            )
        self.pool = BlockPool(geometry.num_blocks)
        self.index = PrefixIndex()
        self.idle = IdleNodes()
        self.evicted = EvictedPrefixes(min(geometry.num_blocks, MAX_REMEMBERED_EVICTIONS))
        self.num_owed = 0
        self.num_evictions = 0

    @property
    def num_available(self) -> int:
        """Blocks that can be leased now: free ones, and cached ones by eviction."""
        return self.pool.num_free + len(self.idle)

    def lease(self) -> list[int]:
        """Leases as much of what is owed as is available; evicts when nothing is free."""
        num_blocks = min(self.num_owed, self.num_available)
        self.num_owed -= num_blocks
        for _ in range(num_blocks - self.pool.num_free):
            self._evict()
        return [self.pool.take() for _ in range(num_blocks)]

    def free_leased(self, block_ids: list[int]) -> None:
        """Takes back leased blocks. Raises InvariantBroken for one that is not leased."""
        for block_id in block_ids:
            self.pool.free(block_id, BlockState.LEASED)

    def free_all_leased(self) -> None:
        """Takes back every lease, of a scheduler that is gone."""
        self.num_owed = 0
        for block_id in range(self.pool.num_blocks):
            if self.pool.state(block_id) is BlockState.LEASED:
                self.pool.free(block_id, BlockState.LEASED)

    def reference(self, nodes: list[Node]) -> None:
        """A sequence uses these cached blocks from now on."""
        for node in nodes:
            if node.users == 0:
                self.idle.remove(node)
                self.pool.transfer(node.block_id, BlockState.CACHED, BlockState.REFERENCED)
            node.users += 1

    def commit(self, salt: str, block_hash: bytes, parent: Node | None, block_id: int) -> Node:
        """A sequence's leased block is full: indexes it.

        Where the content is there already, an idle block with it is freed in favour of the new one; one
        in use stays, and the new block waits as its duplicate.
        """
        self.pool.transfer(block_id, BlockState.LEASED, BlockState.REFERENCED)
        found = self.index.nodes_of(salt).get(block_hash)
        if found is None:
            return self._insert(salt, block_hash, parent, block_id)
        if found.users == 0:
            self.idle.remove(found)
            self.pool.free(found.block_id, BlockState.CACHED)
            found.block_id = block_id
            found.users = 1
        else:
            found.add_duplicate(block_id)
        return found

    def hold(self, salt: str, block_hash: bytes, parent: Node | None, block_id: int) -> Node:
        """An open sequence has had this block since before we began; it is referenced already.

        Of several blocks with one content, one may have several users: that one is found by others.
        """
        found = self.index.nodes_of(salt).get(block_hash)
        if found is None:
            return self._insert(salt, block_hash, parent, block_id)
        if found.block_id == block_id:
            found.users += 1
        elif found.duplicates is None or block_id not in found.duplicates:
            found.add_duplicate(block_id)
        elif found.users == 1:
            found.duplicates.remove(block_id)
            found.duplicates.append(found.block_id)
            found.block_id, found.users = block_id, 2
        else:
            raise InvariantBroken(
                f"blocks {found.block_id} and {block_id} have one content and both several users"
            )
        return found

    def release(self, node: Node, block_id: int) -> None:
        """A sequence that has `block_id` in its table for this node is over.

        Must be called from the last block of a sequence to its first.
        """
        if block_id != node.block_id:
            if node.duplicates is None or block_id not in node.duplicates:
                raise InvariantBroken(f"block {block_id} is no duplicate of block {node.block_id}")
            node.duplicates.remove(block_id)
            self.pool.free(block_id, BlockState.REFERENCED)
            return
        node.users -= 1
        if node.users:
            return
        if node.duplicates:
            self.pool.free(block_id, BlockState.REFERENCED)
            node.block_id = node.duplicates.pop()
            node.users = 1
        else:
            self.pool.transfer(block_id, BlockState.REFERENCED, BlockState.CACHED)
            self.idle.push(node)

    def miss_reason(self, salt: str, block_hash: bytes, parent: Node | None) -> str:
        """Why the block behind `parent` is not indexed."""
        if self.evicted.seen(salt, block_hash):
            return "evicted"
        if self.index.has_under_any_salt(block_hash):
            return "salt"
        if parent is not None and parent.num_children:
            return "diverged"
        return "cold"

    def verify(self) -> None:
        """Recounts everything; for tests. Raises InvariantBroken."""
        self.pool.verify()
        idle = self.idle.in_order()
        if len(idle) != self.pool.counts[BlockState.CACHED]:
            raise InvariantBroken(
                f"{len(idle)} idle nodes, {self.pool.counts[BlockState.CACHED]} cached blocks"
            )
        order = {node: place for place, node in enumerate(idle)}
        nodes = self.index.all_nodes()
        blocks = [node.block_id for node in nodes]
        if len(set(blocks)) != len(blocks):
            raise InvariantBroken("two nodes have the same block")
        for node in nodes:
            self._verify_node(node, order)

    def verify_uses(self, held: set[int], num_uses: int) -> None:
        """Compares with the blocks that the open sequences have; for tests. Raises InvariantBroken."""
        if len(held) != self.pool.counts[BlockState.REFERENCED]:
            raise InvariantBroken(
                f"sequences have blocks {sorted(held)},"
                f" {self.pool.counts[BlockState.REFERENCED]} blocks are referenced"
            )
        if any(self.pool.state(block_id) is not BlockState.REFERENCED for block_id in held):
            raise InvariantBroken(f"one of the sequences' blocks {sorted(held)} is not referenced")
        counted = sum(node.users for node in self.index.all_nodes())
        if counted != num_uses:
            raise InvariantBroken(f"{counted} users counted, {num_uses} found")

    def _verify_node(self, node: Node, order: dict[Node, int]) -> None:
        wanted = BlockState.REFERENCED if node.users else BlockState.CACHED
        if self.pool.state(node.block_id) is not wanted or (node.users == 0) != (node in order):
            raise InvariantBroken(
                f"block {node.block_id} with {node.users} users is {self.pool.state(node.block_id).name}"
            )
        if node.duplicates and not node.users:
            raise InvariantBroken(f"idle block {node.block_id} has duplicates {node.duplicates}")
        parent = node.parent
        if parent is None:
            return
        if self.index.nodes_of(node.salt).get(parent.block_hash) is not parent:
            raise InvariantBroken(f"the parent of block {node.block_id} is not indexed")
        if parent in order and not order.get(node, len(order)) < order[parent]:
            raise InvariantBroken(f"block {parent.block_id} would be evicted before its child")

    def _insert(self, salt: str, block_hash: bytes, parent: Node | None, block_id: int) -> Node:
        node = Node(salt, block_hash, parent, block_id)
        self.index.insert(node)
        return node

    def _evict(self) -> None:
        node = self.idle.pop()
        if node.num_children:
            raise InvariantBroken(f"block {node.block_id} is evicted before its children")
        self.evicted.add(node.salt, node.block_hash)
        self.index.remove(node)
        self.pool.free(node.block_id, BlockState.CACHED)
        self.num_evictions += 1
