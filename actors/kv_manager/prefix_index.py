"""Which prefixes are in the KV cache of one group: a tree of blocks per salt, found by chained hashes."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

HASH_BYTES: Final = 16


def root_hash(adapter: str) -> bytes:
    """What the first block's hash is chained to: the weights that compute the KV, so adapters never mix."""
    return blake2b(adapter.encode(), digest_size=HASH_BYTES, person=b"pillion adapter").digest()


def block_hash(parent: bytes, token_ids: bytes) -> bytes:
    """The name of a block's content: its tokens (packed int32) and, by the parent's hash, all before them.

    128 bits of BLAKE2b: 1.2 microseconds per block of 16 tokens on a 2-core machine.
    """
    return blake2b(parent + token_ids, digest_size=HASH_BYTES).digest()


class Node:
    """One content of one group: the block that has it, and who uses it.

    `users` counts the open sequences whose table has `block_id`. `duplicates` are blocks of open sequences
    with the same content: found by nobody, they step in when the last user of `block_id` has gone.
    A node without users has no duplicates.
    """

    __slots__ = (
        "block_hash",
        "block_id",
        "duplicates",
        "num_children",
        "parent",
        "salt",
        "users",
    )

    def __init__(self, salt: str, block_hash: bytes, parent: "Node | None", block_id: int) -> None:
        self.salt = salt
        self.block_hash = block_hash
        self.parent = parent
        self.block_id = block_id
        self.users = 1
        self.duplicates: list[int] | None = None
        self.num_children = 0

    def add_duplicate(self, block_id: int) -> None:
        """Another block of an open sequence has the same content."""
        if self.duplicates is None:
            self.duplicates = [block_id]
        else:
            self.duplicates.append(block_id)


class PrefixIndex:
    """Finds nodes by salt and hash. Memory is bounded by the group's blocks: one node each, at most.

    A cached block costs this process about 360 bytes (measured over 300,000), its place in the order of
    eviction included.
    A salt is compared as it is, not hashed, so that two salts are never mixed up.
    """

    def __init__(self) -> None:
        self._spaces: dict[str, dict[bytes, Node]] = {}
        # Under how many salts a hash is indexed, to tell a miss because of the salt.
        self._num_salts: dict[bytes, int] = {}
        self._nothing: dict[bytes, Node] = {}

    def __len__(self) -> int:
        return sum(len(space) for space in self._spaces.values())

    def nodes_of(self, salt: str) -> Mapping[bytes, Node]:
        """The nodes of a salt by hash."""
        return self._spaces.get(salt, self._nothing)

    def has_under_any_salt(self, block_hash: bytes) -> bool:
        """Whether this content is indexed under some salt."""
        return block_hash in self._num_salts

    def insert(self, node: Node) -> None:
        """Indexes a content that its salt does not have yet."""
        self._spaces.setdefault(node.salt, {})[node.block_hash] = node
        self._num_salts[node.block_hash] = self._num_salts.get(node.block_hash, 0) + 1
        if node.parent is not None:
            node.parent.num_children += 1

    def remove(self, node: Node) -> None:
        """Takes a leaf out."""
        space = self._spaces[node.salt]
        del space[node.block_hash]
        if not space:
            del self._spaces[node.salt]
        num_salts = self._num_salts.pop(node.block_hash) - 1
        if num_salts:
            self._num_salts[node.block_hash] = num_salts
        if node.parent is not None:
            node.parent.num_children -= 1

    def all_nodes(self) -> list[Node]:
        """Every indexed node."""
        return [node for space in self._spaces.values() for node in space.values()]
