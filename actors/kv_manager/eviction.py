"""Which cached block goes first, and what is remembered of those that went."""

from collections import OrderedDict

from pillion.actors.kv_manager.prefix_index import Node


class IdleNodes:
    """Cached blocks that no sequence uses, least recently used first. Every operation takes constant time.

    A sequence that ends puts its blocks here from the last to the first, and a block is only ever used
    together with all those before it in its prefix. So a child always stands before its parent, and the
    head is the least recently used of all blocks and a leaf: no search is needed.
    """

    def __init__(self) -> None:
        self._nodes: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: Node) -> bool:
        return node in self._nodes

    def push(self, node: Node) -> None:
        """Makes a node the most recently used one."""
        self._nodes[node] = None

    def remove(self, node: Node) -> None:
        """Takes out a node that is used again."""
        del self._nodes[node]

    def pop(self) -> Node:
        """Takes out the least recently used leaf. Raises KeyError when empty."""
        return self._nodes.popitem(last=False)[0]

    def in_order(self) -> list[Node]:
        """All nodes, the next to be evicted first."""
        return list(self._nodes)


class EvictedPrefixes:
    """Remembers what was evicted, so that a miss can say so. Bounded: it forgets the oldest.

    Holds between `capacity / 2` and `capacity` of the latest hashes, as 64-bit fingerprints in two sets
    of which the older one is dropped when the younger one is full. A wrong "evicted" for a prefix never
    seen has a chance of about capacity / 2**64.
    """

    def __init__(self, capacity: int) -> None:
        self._half = max(1, capacity // 2)
        self._young: set[int] = set()
        self._old: set[int] = set()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, salt: str, block_hash: bytes) -> None:
        """Remembers an evicted block."""
        if len(self._young) >= self._half:
            self._old, self._young = self._young, set()
        self._young.add(hash((salt, block_hash)))

    def seen(self, salt: str, block_hash: bytes) -> bool:
        """Whether this block was evicted lately."""
        fingerprint = hash((salt, block_hash))
        return fingerprint in self._young or fingerprint in self._old
