"""The KV manager: who has which block, and which prefixes are cached. No socket and no clock inside."""

from collections.abc import Mapping
from typing import assert_never

from pillion.actors.kv_manager.block_pool import BlockState
from pillion.actors.kv_manager.groups import KvGroup
from pillion.actors.kv_manager.open_sequences import TOKEN_BYTES, OpenSequences
from pillion.messages.base import RingMessage
from pillion.messages.blocks import (
    BlockLease,
    CommitBlocks,
    FindPrefix,
    HeldBlocks,
    LeaseRequest,
    PrefixFound,
    ReleaseBlocks,
    ReturnLease,
)
from pillion.messages.codec import pack_ids, unpack_ids
from pillion.messages.control import EngineGeometry, PeerRestarted, Shutdown
from pillion.messages.inboxes import KvManagerInbox
from pillion.runtime.errors import InvariantBroken
from pillion.runtime.lives import Lives

SchedulerMessage = (
    FindPrefix | LeaseRequest | ReturnLease | CommitBlocks | ReleaseBlocks | HeldBlocks
)


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
        self.sequences = OpenSequences(self.groups, 0, enable_prefix_caching)
        self._epoch = epoch
        self._lives = Lives(peer_epochs)
        self._caching = enable_prefix_caching
        self._block_tokens = 0
        self._verify_always = verify_always
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
        self.sequences.verify()

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
                self.sequences.commit(message)
            case ReleaseBlocks():
                self.sequences.release(message)
            case HeldBlocks():
                self.sequences.take_over(message)
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
        self.sequences = OpenSequences(self.groups, self._block_tokens, self._caching)
        early, self._early = self._early, []
        for held in early:
            self._on_scheduler_message(held)

    def _forget_everything(self) -> None:
        """A new worker: its memory is empty, and its geometry says how large."""
        self.groups = []
        self.sequences = OpenSequences(self.groups, 0, self._caching)
        self._early.clear()

    def _end_scheduler(self) -> None:
        """Ends all that the old scheduler had; what it committed stays cached.

        The old one's plans may still write to what is free now. The worker takes steps in order and drops
        the old plans before the first new one, so whoever gets such a block writes to it last.
        """
        self._early.clear()
        self.sequences.end_all()
        for group in self.groups:
            group.free_all_leased()

    def _on_find_prefix(self, message: FindPrefix) -> None:
        sequence, reason = self.sequences.open(message)
        num_cached_tokens = len(sequence.block_ids[0]) * self._block_tokens
        self._count("prefix_lookups", 1)
        self._count("prefix_tokens", len(message.token_ids) // TOKEN_BYTES)
        self._count("prefix_cached_tokens", num_cached_tokens)
        self._count(f"prefix_miss_{reason or 'none'}", 1)
        if not message.wants_answer:
            return
        self._send(
            PrefixFound(
                epoch=self._epoch,
                sequence_id=message.sequence_id,
                block_ids=[block_ids.tobytes() for block_ids in sequence.block_ids],
                num_cached_tokens=num_cached_tokens,
                miss_reason=reason,
                worker_epoch=self._lives["gpu_worker"],
            )
        )

    def _on_lease_request(self, message: LeaseRequest) -> None:
        group = self._group(message.group)
        if message.num_blocks < 0:
            raise InvariantBroken(f"a lease of {message.num_blocks} blocks")
        group.num_owed = group.num_owed + message.num_blocks if message.num_blocks else 0
        self._send_lease(message.group)

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

    def _count(self, counter: str, amount: int) -> None:
        self.counters[counter] = self.counters.get(counter, 0) + amount

    def _send(self, message: BlockLease | PrefixFound) -> None:
        self.outgoing.append(("scheduler", message))
