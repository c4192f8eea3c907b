"""The sequences that are open at the KV manager, and the blocks that they have."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pillion.actors.kv_manager.block_pool import BlockState
from pillion.actors.kv_manager.groups import KvGroup
from pillion.actors.kv_manager.prefix_index import Node, block_hash, root_hash
from pillion.messages.blocks import (
    PRIVATE_SALT_PREFIX,
    CommitBlocks,
    FindPrefix,
    HeldBlocks,
    HeldSequence,
    ReleaseBlocks,
)
from pillion.messages.codec import unpack_ids
from pillion.messages.ids import SequenceId
from pillion.runtime.errors import InvariantBroken

TOKEN_BYTES: Final = 4


@dataclass(slots=True)
class OpenSequence:
    """What a sequence has from FindPrefix to ReleaseBlocks: its committed blocks, cached prefix first."""

    salt: str
    last_hash: bytes
    nodes: list[list[Node]] = field(default_factory=list)  # per group
    block_ids: list["array[int]"] = field(default_factory=list)  # per group, as in its block table


class OpenSequences:
    """Every open sequence. Each method raises InvariantBroken for what contradicts the books.

    Without `caching` no sequence finds the blocks of another, unless both belong to one request.
    """

    def __init__(self, groups: list[KvGroup], block_tokens: int, caching: bool) -> None:
        self._groups = groups
        self._block_tokens = block_tokens
        self._caching = caching
        self._open: dict[SequenceId, OpenSequence] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[SequenceId]:
        return iter(self._open)

    def open(self, message: FindPrefix) -> tuple[OpenSequence, str]:
        """Opens a sequence with the longest cached prefix. Returns it, and why its prefix is not longer."""
        sequence_id = message.sequence_id
        num_tokens, rest = divmod(len(message.token_ids), TOKEN_BYTES)
        if sequence_id in self._open or rest or not num_tokens:
            raise InvariantBroken(
                f"FindPrefix of sequence {sequence_id} with {len(message.token_ids)} bytes of tokens;"
                f" already open: {sequence_id in self._open}"
            )
        longest = (num_tokens - 1) // self._block_tokens
        sequence = OpenSequence(
            self._own_salt(message.salt, sequence_id), root_hash(message.adapter)
        )
        reason = self._reference_prefix(
            sequence, message.token_ids, longest if message.use_cache else 0
        )
        self._open[sequence_id] = sequence
        num_blocks = len(sequence.block_ids[0])
        if not longest:
            reason = "short"
        elif num_blocks < longest and not message.use_cache:
            reason = "request"
        elif num_blocks < longest and not self._caching:
            reason = "disabled"
        return sequence, reason

    def commit(self, message: CommitBlocks) -> None:
        """Full blocks of a sequence become what others can find."""
        sequence = self._sequence(message.sequence_id)
        size = self._block_tokens * TOKEN_BYTES
        num_blocks, rest = divmod(len(message.token_ids), size)
        block_ids = [unpack_ids(ids) for ids in message.block_ids]
        position = len(sequence.block_ids[0]) * self._block_tokens
        if (
            rest
            or message.start != position
            or [len(ids) for ids in block_ids] != [num_blocks] * len(self._groups)
        ):
            raise InvariantBroken(
                f"sequence {message.sequence_id} commits {len(message.token_ids) // TOKEN_BYTES} tokens"
                f" at {message.start} in blocks {block_ids}; its next block starts at {position}"
            )
        for number in range(num_blocks):
            sequence.last_hash = block_hash(
                sequence.last_hash, message.token_ids[number * size : (number + 1) * size]
            )
            for group, nodes, own_ids, ids in zip(
                self._groups, sequence.nodes, sequence.block_ids, block_ids, strict=True
            ):
                parent = nodes[-1] if nodes else None
                nodes.append(group.commit(sequence.salt, sequence.last_hash, parent, ids[number]))
                own_ids.append(ids[number])

    def release(self, message: ReleaseBlocks) -> None:
        """Ends a sequence; what it committed stays cached."""
        sequence = self._sequence(message.sequence_id)
        if len(message.block_ids) != len(self._groups):
            raise InvariantBroken(
                f"sequence {message.sequence_id} releases blocks of {len(message.block_ids)} groups"
                f" of {len(self._groups)}"
            )
        for group, own_ids, ids in zip(
            self._groups, sequence.block_ids, message.block_ids, strict=True
        ):
            committed = own_ids.tobytes()
            if not ids.startswith(committed):
                raise InvariantBroken(
                    f"sequence {message.sequence_id} releases blocks {unpack_ids(ids)}"
                    f" and had committed {own_ids.tolist()}"
                )
            group.free_leased(unpack_ids(ids[len(committed) :]))
        self._release_committed(sequence)
        del self._open[message.sequence_id]

    def end_all(self) -> None:
        """Ends every sequence; what they committed stays cached."""
        for sequence in self._open.values():
            self._release_committed(sequence)
        self._open.clear()

    def take_over(self, message: HeldBlocks) -> None:
        """Opens what a predecessor had open, with the blocks that it had given out."""
        if self._open or any(group.pool.num_free < group.pool.num_blocks for group in self._groups):
            raise InvariantBroken("the scheduler says what it holds to a KV manager that knows it")
        for number, group in enumerate(self._groups):
            group.pool.claim(unpack_ids(message.leased[number]), BlockState.LEASED)
            referenced = {
                block_id
                for held in message.sequences
                for block_id in unpack_ids(held.block_ids[number])
            }
            group.pool.claim(referenced, BlockState.REFERENCED)
        for held in message.sequences:
            self._open[held.sequence_id] = self._held_sequence(held)

    def verify(self) -> None:
        """Recounts every block of every group. Takes time; for tests."""
        for number, group in enumerate(self._groups):
            group.verify()
            held: set[int] = set()
            num_uses = 0
            for sequence in self._open.values():
                for node, block_id in zip(
                    sequence.nodes[number], sequence.block_ids[number], strict=True
                ):
                    if block_id != node.block_id and block_id not in (node.duplicates or ()):
                        raise InvariantBroken(f"block {block_id} does not belong to its node")
                    held.add(block_id)
                    num_uses += block_id == node.block_id
            group.verify_uses(held, num_uses)

    def _held_sequence(self, held: HeldSequence) -> OpenSequence:
        size = self._block_tokens * TOKEN_BYTES
        sequence = OpenSequence(
            self._own_salt(held.salt, held.sequence_id), root_hash(held.adapter)
        )
        sequence.block_ids = [array("i", unpack_ids(ids)) for ids in held.block_ids]
        sequence.nodes = [[] for _ in self._groups]
        for number in range(len(held.token_ids) // size):
            sequence.last_hash = block_hash(
                sequence.last_hash, held.token_ids[number * size : (number + 1) * size]
            )
            for group, nodes, block_ids in zip(
                self._groups, sequence.nodes, sequence.block_ids, strict=True
            ):
                parent = nodes[-1] if nodes else None
                nodes.append(
                    group.hold(sequence.salt, sequence.last_hash, parent, block_ids[number])
                )
        return sequence

    def _own_salt(self, salt: str, sequence_id: SequenceId) -> str:
        """Without a prefix cache each sequence is alone, unless its request shares within itself."""
        if self._caching or salt.startswith(PRIVATE_SALT_PREFIX):
            return salt
        return f"{PRIVATE_SALT_PREFIX}sequence {sequence_id}"

    def _reference_prefix(self, sequence: OpenSequence, token_ids: bytes, longest: int) -> str:
        """Gives the sequence the longest prefix that every group has; returns why it is not longer."""
        size = self._block_tokens * TOKEN_BYTES
        hashes: list[bytes] = []
        last_hash = sequence.last_hash
        reason = ""
        for group in self._groups:
            found = group.index.nodes_of(sequence.salt)
            nodes: list[Node] = []
            for position in range(longest):
                if position == len(hashes):
                    start = position * size
                    last_hash = block_hash(last_hash, token_ids[start : start + size])
                    hashes.append(last_hash)
                node = found.get(hashes[position])
                if node is None:
                    parent = nodes[-1] if nodes else None
                    reason = group.miss_reason(sequence.salt, hashes[position], parent)
                    longest = position
                    break
                nodes.append(node)
            sequence.nodes.append(nodes)
        for group, nodes in zip(self._groups, sequence.nodes, strict=True):
            del nodes[longest:]
            group.reference(nodes)
            sequence.block_ids.append(array("i", [node.block_id for node in nodes]))
        if longest:
            sequence.last_hash = hashes[longest - 1]
        return reason

    def _release_committed(self, sequence: OpenSequence) -> None:
        for group, nodes, block_ids in zip(
            self._groups, sequence.nodes, sequence.block_ids, strict=True
        ):
            for node, block_id in zip(reversed(nodes), reversed(block_ids), strict=True):
                group.release(node, block_id)

    def _sequence(self, sequence_id: SequenceId) -> OpenSequence:
        sequence = self._open.get(sequence_id)
        if sequence is None:
            raise InvariantBroken(f"sequence {sequence_id} is not open at the KV manager")
        return sequence
