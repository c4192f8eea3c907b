"""A KV manager in few lines that keeps the rules of messages/blocks.py and checks that the scheduler does."""

from array import array

from pillion.messages.base import RingMessage
from pillion.messages.blocks import (
    BlockLease,
    CommitBlocks,
    FindPrefix,
    HeldBlocks,
    LeaseRequest,
    PrefixFound,
    RecallLease,
    ReleaseBlocks,
    ReturnLease,
)
from pillion.messages.codec import pack_ids, unpack_ids
from pillion.messages.control import EngineGeometry, PeerRestarted, Shutdown
from pillion.messages.inboxes import KvManagerInbox
from pillion.runtime.errors import InvariantBroken

Key = tuple[str, tuple[int, ...]]


class FakeKvManager:
    """One group. Every block is free, leased, or known by the tokens up to its end, with a count of users."""

    def __init__(self, num_blocks: int, block_size: int, epoch: int = 1) -> None:
        self.outgoing: list[tuple[str, RingMessage]] = []
        self.finished = False
        self.num_evictions = 0
        self.num_requests = 0
        self.num_blocks = num_blocks
        self._size = block_size
        self._epoch = epoch
        self._begin(worker_epoch=1)

    def _begin(self, worker_epoch: int) -> None:
        """Nothing is known about the worker's memory."""
        self.free = list(range(self.num_blocks))
        self.leased: set[int] = set()
        self.owed = 0
        self.open: dict[int, tuple[str, list[int], list[int]]] = {}  # salt, tokens, blocks
        self._index: dict[Key, int] = {}  # least recently used first
        self._users: dict[int, int] = {}
        self._worker_epoch = worker_epoch

    @property
    def num_used(self) -> int:
        """Blocks that sequences reference."""
        return sum(users > 0 for users in self._users.values())

    def on_message(self, message: KvManagerInbox, now_ns: int) -> None:
        """Takes one message; raises InvariantBroken for one that breaks a rule."""
        match message:
            case FindPrefix():
                self._find(message)
            case LeaseRequest():
                self.num_requests += 1
                self.owed = self.owed + message.num_blocks if message.num_blocks else 0
                self._lease()
            case ReturnLease():
                self._free_leased(unpack_ids(message.block_ids))
            case CommitBlocks():
                self._commit(message)
            case ReleaseBlocks():
                self._release(message)
            case Shutdown():
                self.finished = True
            case PeerRestarted():
                if message.actor == "gpu_worker":
                    self._begin(message.epoch)
            case HeldBlocks():
                self._hold(message)
            case EngineGeometry():
                pass
        if self.owed and (self.free or self._evictable()):
            self._lease()

    def tick(self, now_ns: int) -> int | None:
        """Nothing here depends on time."""
        return None

    def recall(self, num_blocks: int) -> None:
        """Asks for blocks back, as if another group needed them."""
        self.outgoing.append(
            (
                "scheduler",
                RecallLease(
                    epoch=self._epoch,
                    group=0,
                    num_blocks=num_blocks,
                    worker_epoch=self._worker_epoch,
                ),
            )
        )

    def _evictable(self) -> list[Key]:
        return [key for key, block_id in self._index.items() if not self._users[block_id]]

    def _lease(self) -> None:
        taken = []
        while self.owed and (self.free or self._evict()):
            self.owed -= 1
            taken.append(self.free.pop(0))
        self.leased.update(taken)
        lease = BlockLease(
            epoch=self._epoch,
            group=0,
            block_ids=pack_ids(taken),
            num_owed=self.owed,
            worker_epoch=self._worker_epoch,
        )
        self.outgoing.append(("scheduler", lease))

    def _evict(self) -> bool:
        keys = self._evictable()
        if not keys:
            return False
        longest = max(keys[: len(keys) // 2 + 1], key=lambda key: len(key[1]))
        block_id = self._index.pop(longest)
        del self._users[block_id]
        self.free.append(block_id)
        self.num_evictions += 1
        return True

    def _find(self, message: FindPrefix) -> None:
        if message.sequence_id in self.open:
            raise InvariantBroken(f"sequence {message.sequence_id} is open already")
        tokens = unpack_ids(message.token_ids)
        blocks: list[int] = []
        while message.use_cache and (len(blocks) + 1) * self._size < len(tokens):
            key = (message.salt, tuple(tokens[: (len(blocks) + 1) * self._size]))
            if key not in self._index:
                break
            self._index[key] = self._index.pop(key)
            blocks.append(self._index[key])
        for block_id in blocks:
            self._users[block_id] += 1
        num_tokens = len(blocks) * self._size
        self.open[message.sequence_id] = (message.salt, tokens[:num_tokens], blocks)
        if not message.wants_answer:
            return
        self.outgoing.append(
            (
                "scheduler",
                PrefixFound(
                    epoch=self._epoch,
                    sequence_id=message.sequence_id,
                    block_ids=[pack_ids(blocks)],
                    num_cached_tokens=num_tokens,
                    miss_reason="cold",
                    worker_epoch=self._worker_epoch,
                ),
            )
        )

    def _commit(self, message: CommitBlocks) -> None:
        salt, tokens, blocks = self.open[message.sequence_id]
        new, (ids,) = unpack_ids(message.token_ids), map(unpack_ids, message.block_ids)
        if message.start != len(tokens) or len(new) != len(ids) * self._size or not ids:
            raise InvariantBroken(f"{message} follows {len(tokens)} tokens")
        for place, block_id in enumerate(ids):
            self.leased.remove(block_id)
            tokens += new[place * self._size : (place + 1) * self._size]
            blocks.append(block_id)
            self._users[block_id] = 1
            self._index.setdefault((salt, tuple(tokens)), block_id)

    def _release(self, message: ReleaseBlocks) -> None:
        _, _, blocks = self.open.pop(message.sequence_id)
        (ids,) = map(unpack_ids, message.block_ids)
        if ids[: len(blocks)] != blocks or len(set(ids)) != len(ids):
            raise InvariantBroken(f"{message} after commits of {blocks}")
        self._free_leased(ids[len(blocks) :])
        indexed = set(self._index.values())
        for block_id in blocks:
            self._users[block_id] -= 1
            if not self._users[block_id] and block_id not in indexed:
                del self._users[block_id]
                self.free.append(block_id)

    def _hold(self, message: HeldBlocks) -> None:
        self.leased.update(unpack_ids(message.leased[0]))
        for held in message.sequences:
            tokens, blocks = unpack_ids(held.token_ids), unpack_ids(held.block_ids[0])
            if len(tokens) != len(blocks) * self._size:
                raise InvariantBroken(f"{len(tokens)} tokens in {held}")
            self.open[held.sequence_id] = (held.salt, tokens, blocks)
            for number, block_id in enumerate(blocks):
                self._users[block_id] = self._users.get(block_id, 0) + 1
                key = (held.salt, tuple(tokens[: (number + 1) * self._size]))
                self._index.setdefault(key, block_id)
        held_ids = self.leased | self._users.keys()
        self.free = [block_id for block_id in self.free if block_id not in held_ids]

    def _free_leased(self, block_ids: list[int]) -> None:
        for block_id in array("i", block_ids):
            self.leased.remove(block_id)
            self.free.append(block_id)

    def verify(self) -> None:
        """Every block is in exactly one place."""
        places = [*self.free, *self.leased, *self._users]
        if sorted(places) != list(range(self.num_blocks)):
            raise InvariantBroken(f"blocks {sorted(places)} of {self.num_blocks}")
