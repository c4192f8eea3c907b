"""The KV manager: who has which block, and which prefixes are cached. No socket and no clock inside."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never

from pillion.actors.kv_manager.block_pool import BlockState
from pillion.actors.kv_manager.groups import KvGroup
from pillion.actors.kv_manager.prefix_index import Node, block_hash, root_hash
from pillion.messages.base import RingMessage
from pillion.messages.blocks import (
    PRIVATE_SALT_PREFIX,
    BlockLease,
    CommitBlocks,
    FindPrefix,
    HeldBlocks,
    HeldSequence,
    LeaseRequest,
    PrefixFound,
    ReleaseBlocks,
    ReturnLease,
)
from pillion.messages.codec import pack_ids, unpack_ids
from pillion.messages.control import EngineGeometry, PeerRestarted, Shutdown
from pillion.messages.ids import SequenceId
from pillion.messages.inboxes import KvManagerInbox
from pillion.runtime.errors import InvariantBroken
from pillion.runtime.lives import Lives

TOKEN_BYTES: Final = 4

SchedulerMessage = (
    FindPrefix | LeaseRequest | ReturnLease | CommitBlocks | ReleaseBlocks | HeldBlocks
)


@dataclass(slots=True)
class OpenSequence:
    """What a sequence has from FindPrefix to ReleaseBlocks: its committed blocks, cached prefix first."""

    salt: str
    last_hash: bytes
    nodes: list[list[Node]] = field(default_factory=list)  # per group
    block_ids: list["array[int]"] = field(default_factory=list)  # per group, as in its block table


class KvManager:
    """The pure core of the actor. Never waits and never sleeps: every message is answered at once.

    With a new scheduler all leases and sequences end and what is cached stays; with a new worker nothing is
    left. `verify_always` recounts every block after every message; only tests can afford it.
    """

    def __init__(
        self,
        epoch: int,
        enable_prefix_caching: bool,
        verify_always: bool = False,
        peer_epochs: Mapping[str, int] | None = None,
    ) -> None:
        self.outgoing: list[tuple[str, RingMessage]] = []
        self.finished = False
        self.counters: dict[str, int | float] = {}
        self.gauges: dict[str, int | float | str] = {}
        self.groups: list[KvGroup] = []
        self.sequences: dict[SequenceId, OpenSequence] = {}
        self._epoch = epoch
        self._lives = Lives(peer_epochs)
        self._caching = enable_prefix_caching
        self._verify_always = verify_always
        self._block_tokens = 0
        # The scheduler may have heard of the geometry before us; it asks for no more than its candidates.
        self._early: list[SchedulerMessage] = []

    def on_message(self, message: KvManagerInbox, now_ns: int) -> None:
        """Takes one message. Raises InvariantBroken, with the values, for one that contradicts the books."""
        if self._lives.is_stale(message):
            return
        begun = self._lives.begun_by(message)
        if begun == "scheduler":
            self._end_scheduler()
        elif begun == "gpu_worker":
            self._forget_everything()
        match message:
            case EngineGeometry():
                self._on_geometry(message)
            case PeerRestarted():
                pass
            case Shutdown():
                self.finished = True
            case _:
                self._on_scheduler_message(message)
        self._settle()
        if self._verify_always:
            self.verify()

    def tick(self, now_ns: int) -> int | None:
        """Brings the gauges up to date. Nothing here depends on time."""
        self.gauges["sequences"] = len(self.sequences)
        for number, group in enumerate(self.groups):
            for state in BlockState:
                self.gauges[f"{state.name.lower()}_blocks_{number}"] = group.pool.counts[state]
            self.gauges[f"owed_blocks_{number}"] = group.num_owed
            self.counters[f"evicted_blocks_{number}"] = group.num_evictions
        return None

    def verify(self) -> None:
        """Recounts every block of every group. Raises InvariantBroken. Takes time; for tests."""
        for number, group in enumerate(self.groups):
            group.verify()
            held: set[int] = set()
            num_uses = 0
            for sequence in self.sequences.values():
                for node, block_id in zip(
                    sequence.nodes[number], sequence.block_ids[number], strict=True
                ):
                    if block_id != node.block_id and block_id not in (node.duplicates or ()):
                        raise InvariantBroken(f"block {block_id} does not belong to its node")
                    held.add(block_id)
                    num_uses += block_id == node.block_id
            group.verify_uses(held, num_uses)

    def _on_scheduler_message(self, message: SchedulerMessage) -> None:
        if self._lives.adopt("gpu_worker", message.worker_epoch):
            self._forget_everything()
        elif message.worker_epoch < self._lives["gpu_worker"]:
            return
        if not self.groups:
            self._early.append(message)
            return
        match message:
            case FindPrefix():
                self._on_find_prefix(message)
            case LeaseRequest():
                self._on_lease_request(message)
            case ReturnLease():
                self._group(message.group).free_leased(unpack_ids(message.block_ids))
            case CommitBlocks():
                self._on_commit(message)
            case ReleaseBlocks():
                self._on_release(message)
            case HeldBlocks():
                self._on_held_blocks(message)
            case _:
                assert_never(message)

    def _on_geometry(self, message: EngineGeometry) -> None:
        if self.groups:
            return
        sizes = {group.block_size_tokens for group in message.kv_groups}
        if len(sizes) != 1:
            raise InvariantBroken(f"KV groups need one common block size, got {sorted(sizes)}")
        self._block_tokens = sizes.pop()
        self.groups = [KvGroup(group) for group in message.kv_groups]
        early, self._early = self._early, []
        for held in early:
            self._on_scheduler_message(held)

    def _forget_everything(self) -> None:
        """A new worker: its memory is empty, and its geometry says how large."""
        self.groups.clear()
        self.sequences.clear()
        self._early.clear()

    def _end_scheduler(self) -> None:
        """Ends all that the old scheduler had; what it committed stays cached.

        The old one's plans may still write to what is free now. The worker takes steps in order and drops
        the old plans before the first new one, so whoever gets such a block writes to it last.
        """
        self._early.clear()
        for sequence in self.sequences.values():
            self._release_committed(sequence)
        self.sequences.clear()
        for group in self.groups:
            group.free_all_leased()

    def _on_held_blocks(self, message: HeldBlocks) -> None:
        """Takes over what a predecessor had given out."""
        if self.sequences or any(
            group.pool.num_free < group.pool.num_blocks for group in self.groups
        ):
            raise InvariantBroken("the scheduler says what it holds to a KV manager that knows it")
        for number, group in enumerate(self.groups):
            group.pool.claim(unpack_ids(message.leased[number]), BlockState.LEASED)
            referenced = {
                block_id
                for held in message.sequences
                for block_id in unpack_ids(held.block_ids[number])
            }
            group.pool.claim(referenced, BlockState.REFERENCED)
        for held in message.sequences:
            self.sequences[held.sequence_id] = self._held_sequence(held)

    def _held_sequence(self, held: HeldSequence) -> OpenSequence:
        size = self._block_tokens * TOKEN_BYTES
        sequence = OpenSequence(
            self._own_salt(held.salt, held.sequence_id), root_hash(held.adapter)
        )
        sequence.block_ids = [array("i", unpack_ids(ids)) for ids in held.block_ids]
        sequence.nodes = [[] for _ in self.groups]
        for number in range(len(held.token_ids) // size):
            sequence.last_hash = block_hash(
                sequence.last_hash, held.token_ids[number * size : (number + 1) * size]
            )
            for group, nodes, block_ids in zip(
                self.groups, sequence.nodes, sequence.block_ids, strict=True
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

    def _on_find_prefix(self, message: FindPrefix) -> None:
        sequence_id = message.sequence_id
        num_tokens, rest = divmod(len(message.token_ids), TOKEN_BYTES)
        if sequence_id in self.sequences or rest or not num_tokens:
            raise InvariantBroken(
                f"FindPrefix of sequence {sequence_id} with {len(message.token_ids)} bytes of tokens;"
                f" already open: {sequence_id in self.sequences}"
            )
        salt = self._own_salt(message.salt, sequence_id)
        longest = (num_tokens - 1) // self._block_tokens
        sequence = OpenSequence(salt, root_hash(message.adapter))
        reason = self._reference_prefix(
            sequence, message.token_ids, longest if message.use_cache else 0
        )
        num_blocks = len(sequence.block_ids[0])
        if not longest:
            reason = "short"
        elif num_blocks < longest and not message.use_cache:
            reason = "request"
        elif num_blocks < longest and not self._caching:
            reason = "disabled"
        self.sequences[sequence_id] = sequence
        num_cached_tokens = num_blocks * self._block_tokens
        self._count("prefix_lookups", 1)
        self._count("prefix_tokens", num_tokens)
        self._count("prefix_cached_tokens", num_cached_tokens)
        self._count(f"prefix_miss_{reason or 'none'}", 1)
        if not message.wants_answer:
            return
        self._send(
            PrefixFound(
                epoch=self._epoch,
                sequence_id=sequence_id,
                block_ids=[block_ids.tobytes() for block_ids in sequence.block_ids],
                num_cached_tokens=num_cached_tokens,
                miss_reason=reason,
                worker_epoch=self._lives["gpu_worker"],
            )
        )

    def _reference_prefix(self, sequence: OpenSequence, token_ids: bytes, longest: int) -> str:
        """Gives the sequence the longest prefix that every group has; returns why it is not longer."""
        size = self._block_tokens * TOKEN_BYTES
        hashes: list[bytes] = []
        last_hash = sequence.last_hash
        reason = ""
        for group in self.groups:
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
        for group, nodes in zip(self.groups, sequence.nodes, strict=True):
            del nodes[longest:]
            group.reference(nodes)
            sequence.block_ids.append(array("i", [node.block_id for node in nodes]))
        if longest:
            sequence.last_hash = hashes[longest - 1]
        return reason

    def _on_lease_request(self, message: LeaseRequest) -> None:
        group = self._group(message.group)
        if message.num_blocks < 0:
            raise InvariantBroken(f"a lease of {message.num_blocks} blocks")
        group.num_owed = group.num_owed + message.num_blocks if message.num_blocks else 0
        self._send_lease(message.group)

    def _on_commit(self, message: CommitBlocks) -> None:
        sequence = self._sequence(message.sequence_id)
        size = self._block_tokens * TOKEN_BYTES
        num_blocks, rest = divmod(len(message.token_ids), size)
        block_ids = [unpack_ids(ids) for ids in message.block_ids]
        position = len(sequence.block_ids[0]) * self._block_tokens
        if (
            rest
            or message.start != position
            or [len(ids) for ids in block_ids] != [num_blocks] * len(self.groups)
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
                self.groups, sequence.nodes, sequence.block_ids, block_ids, strict=True
            ):
                parent = nodes[-1] if nodes else None
                nodes.append(group.commit(sequence.salt, sequence.last_hash, parent, ids[number]))
                own_ids.append(ids[number])

    def _on_release(self, message: ReleaseBlocks) -> None:
        sequence = self._sequence(message.sequence_id)
        if len(message.block_ids) != len(self.groups):
            raise InvariantBroken(
                f"sequence {message.sequence_id} releases blocks of {len(message.block_ids)} groups"
                f" of {len(self.groups)}"
            )
        for group, own_ids, ids in zip(
            self.groups, sequence.block_ids, message.block_ids, strict=True
        ):
            committed = own_ids.tobytes()
            if not ids.startswith(committed):
                raise InvariantBroken(
                    f"sequence {message.sequence_id} releases blocks {unpack_ids(ids)}"
                    f" and had committed {own_ids.tolist()}"
                )
            group.free_leased(unpack_ids(ids[len(committed) :]))
        self._release_committed(sequence)
        del self.sequences[message.sequence_id]

    def _release_committed(self, sequence: OpenSequence) -> None:
        for group, nodes, block_ids in zip(
            self.groups, sequence.nodes, sequence.block_ids, strict=True
        ):
            for node, block_id in zip(reversed(nodes), reversed(block_ids), strict=True):
                group.release(node, block_id)

    def _settle(self) -> None:
        """Pays what is owed from blocks that came free."""
        for number, group in enumerate(self.groups):
            if group.num_owed and group.num_available:
                self._send_lease(number)

    def _send_lease(self, number: int) -> None:
        group = self.groups[number]
        block_ids = pack_ids(group.lease())
        self._send(
            BlockLease(
                epoch=self._epoch,
                group=number,
                block_ids=block_ids,
                num_owed=group.num_owed,
                worker_epoch=self._lives["gpu_worker"],
            )
        )

    def _group(self, number: int) -> KvGroup:
        if not 0 <= number < len(self.groups):
            raise InvariantBroken(f"KV group {number} is not one of {len(self.groups)}")
        return self.groups[number]

    def _sequence(self, sequence_id: SequenceId) -> OpenSequence:
        sequence = self.sequences.get(sequence_id)
        if sequence is None:
            raise InvariantBroken(f"sequence {sequence_id} is not open at the KV manager")
        return sequence

    def _count(self, counter: str, amount: int) -> None:
        self.counters[counter] = self.counters.get(counter, 0) + amount

    def _send(self, message: BlockLease | PrefixFound) -> None:
        self.outgoing.append(("scheduler", message))
