"""The KV manager against a slow and simple model of it, over random histories."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pillion.actors.kv_manager.kv_manager import KvManager
from pillion.messages.base import RingMessage
from pillion.messages.blocks import (
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
from pillion.messages.control import EngineGeometry, KvGroupGeometry, PeerRestarted
from pillion.messages.inboxes import KvManagerInbox

BLOCK = 8  # tokens
SALTS = ("", "s")
MAX_BLOCKS = 5  # per sequence
EVENTS = (
    "find",
    "lease",
    "give back",
    "use",
    "commit",
    "release",
    "restart",
    "restart kv manager",
)
WEIGHTS = (15, 15, 4, 35, 15, 15, 0.1, 0.1)

# A prefix: its salt and the label of each of its blocks. All tokens of a block are its label.
Prefix = tuple[str, tuple[int, ...]]


def parent_of(prefix: Prefix) -> Prefix:
    return prefix[0], prefix[1][:-1]


@dataclass
class Sequence:
    salt: str
    labels: tuple[int, ...]
    block_ids: list[int]
    num_committed: int


@dataclass
class Model:
    """What must be true, found by searching all of it each time."""

    num_blocks: int
    kv: KvManager = field(init=False)
    epoch: int = 1
    clock: int = 0
    next_id: int = 1
    num_owed: int = 0
    leased: list[int] = field(default_factory=list)
    sequences: dict[int, Sequence] = field(default_factory=dict)
    users: dict[Prefix, set[int]] = field(default_factory=dict)
    last_used: dict[Prefix, int] = field(default_factory=dict)
    content: dict[int, Prefix] = field(default_factory=dict)
    evicted: list[Prefix] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A KV manager that knows nothing yet."""
        self.kv = KvManager(epoch=1, enable_prefix_caching=True)
        group = KvGroupGeometry(
            kind="full_attention",
            num_layers=1,
            num_blocks=self.num_blocks,
            block_size_tokens=BLOCK,
            block_bytes=1,
        )
        self.tell(
            EngineGeometry(
                epoch=1,
                model_name="m",
                architecture="a",
                device="cpu",
                dtype="float32",
                vocab_size=10,
                max_model_len=100,
                max_num_seqs=8,
                max_num_batched_tokens=8,
                kv_groups=[group],
                weights_bytes=0,
                kv_bytes=0,
            )
        )

    # What the scheduler does.

    def find(self, salt: str, labels: tuple[int, ...], num_more: int, use_cache: bool) -> None:
        tokens = [label for label in labels for _ in range(BLOCK)] + [9] * num_more
        longest = (len(tokens) - 1) // BLOCK
        num_hits = 0
        while use_cache and num_hits < longest and (salt, labels[: num_hits + 1]) in self.users:
            num_hits += 1
        reasons = self.reasons(salt, labels, num_hits, longest, use_cache)
        sequence_id = self.next_id
        self.next_id += 1
        message = FindPrefix(
            epoch=self.epoch,
            sequence_id=sequence_id,
            token_ids=pack_ids(tokens),
            salt=salt,
            use_cache=use_cache,
        )
        answer, *leases = self.tell(message)
        assert isinstance(answer, PrefixFound)
        block_ids = unpack_ids(answer.block_ids[0])
        assert (answer.num_cached_tokens, len(block_ids)) == (num_hits * BLOCK, num_hits)
        assert answer.miss_reason in reasons
        for number, block_id in enumerate(block_ids):
            prefix = (salt, labels[: number + 1])
            assert self.content[block_id] == prefix
            self.users[prefix].add(sequence_id)
            self.last_used.pop(prefix, None)
        self.sequences[sequence_id] = Sequence(salt, labels, block_ids, num_hits)
        self.settle(leases)

    def lease(self, num_blocks: int) -> None:
        self.num_owed = self.num_owed + num_blocks if num_blocks else 0
        answers = self.tell(LeaseRequest(epoch=self.epoch, group=0, num_blocks=num_blocks))
        self.settle(answers, asked=True)

    def give_back(self, num_blocks: int) -> None:
        block_ids, self.leased = self.leased[:num_blocks], self.leased[num_blocks:]
        self.settle(
            self.tell(ReturnLease(epoch=self.epoch, group=0, block_ids=pack_ids(block_ids)))
        )

    def use(self, sequence_id: int) -> None:
        """The sequence takes a leased block to write to."""
        self.sequences[sequence_id].block_ids.append(self.leased.pop())

    def commit(self, sequence_id: int) -> None:
        """Commits all blocks that the sequence has written."""
        sequence = self.sequences[sequence_id]
        start, end = sequence.num_committed, min(len(sequence.block_ids), len(sequence.labels))
        labels = sequence.labels[start:end]
        message = CommitBlocks(
            epoch=self.epoch,
            sequence_id=sequence_id,
            start=start * BLOCK,
            token_ids=pack_ids(label for label in labels for _ in range(BLOCK)),
            block_ids=[pack_ids(sequence.block_ids[start:end])],
        )
        sequence.num_committed = end
        for number in range(start, end):
            prefix = (sequence.salt, sequence.labels[: number + 1])
            self.users.setdefault(prefix, set()).add(sequence_id)
            self.last_used.pop(prefix, None)
            self.content[sequence.block_ids[number]] = prefix
        self.settle(self.tell(message))

    def release(self, sequence_id: int) -> None:
        block_ids = self.sequences[sequence_id].block_ids
        self.forget(sequence_id)
        message = ReleaseBlocks(
            epoch=self.epoch, sequence_id=sequence_id, block_ids=[pack_ids(block_ids)]
        )
        self.settle(self.tell(message))

    def restart(self) -> None:
        for sequence_id in list(self.sequences):
            self.forget(sequence_id)
        self.leased.clear()
        self.num_owed = 0
        self.epoch += 1
        self.settle(self.tell(PeerRestarted(actor="scheduler", epoch=self.epoch)))

    def restart_kv_manager(self) -> None:
        """It dies, and the next one is told what there is."""
        self.begin()
        self.num_owed = 0
        self.evicted.clear()
        self.users = {prefix: users for prefix, users in self.users.items() if users}
        self.last_used.clear()
        uncommitted = [
            block_id
            for sequence in self.sequences.values()
            for block_id in sequence.block_ids[sequence.num_committed :]
        ]
        message = HeldBlocks(
            epoch=self.epoch,
            leased=[pack_ids(self.leased + uncommitted)],
            sequences=[
                HeldSequence(
                    sequence_id=sequence_id,
                    salt=sequence.salt,
                    token_ids=pack_ids(
                        label
                        for label in sequence.labels[: sequence.num_committed]
                        for _ in range(BLOCK)
                    ),
                    block_ids=[pack_ids(sequence.block_ids[: sequence.num_committed])],
                )
                for sequence_id, sequence in self.sequences.items()
            ],
        )
        self.settle(self.tell(message))

    # What follows from it.

    def forget(self, sequence_id: int) -> None:
        sequence = self.sequences.pop(sequence_id)
        for number in reversed(range(sequence.num_committed)):
            prefix = (sequence.salt, sequence.labels[: number + 1])
            self.users[prefix].discard(sequence_id)
            self.clock += 1
            if not self.users[prefix]:
                self.last_used[prefix] = self.clock

    def reasons(
        self, salt: str, labels: tuple[int, ...], num_hits: int, longest: int, use_cache: bool
    ) -> set[str]:
        """The answers that are right; two of them where the memory of evictions may have run out."""
        if not longest:
            return {"short"}
        if num_hits == longest:
            return {""}
        if not use_cache:
            return {"request"}
        missing = (salt, labels[: num_hits + 1])
        if missing in self.evicted[-(self.num_blocks // 2) :]:
            return {"evicted"}
        if any(indexed[1] == missing[1] for indexed in self.users):
            reason = "salt"
        elif num_hits and any(parent_of(indexed) == parent_of(missing) for indexed in self.users):
            reason = "diverged"
        else:
            reason = "cold"
        return {"evicted", reason} if missing in self.evicted else {reason}

    def num_free(self) -> int:
        held = {block for sequence in self.sequences.values() for block in sequence.block_ids}
        assert held.isdisjoint(self.leased)
        return self.num_blocks - len(held) - len(self.leased) - len(self.last_used)

    def settle(self, answers: list[RingMessage], asked: bool = False) -> None:
        num_free = self.num_free()
        granted = min(self.num_owed, num_free + len(self.last_used))
        for _ in range(granted - num_free):
            self.evict()
        self.num_owed -= granted
        assert len(answers) == (1 if asked or granted else 0)
        for answer in answers:
            assert isinstance(answer, BlockLease)
            block_ids = unpack_ids(answer.block_ids)
            assert (len(block_ids), answer.num_owed) == (granted, self.num_owed)
            held = {block for sequence in self.sequences.values() for block in sequence.block_ids}
            assert held.isdisjoint(block_ids)
            self.leased.extend(block_ids)
            assert len(set(self.leased)) == len(self.leased)

    def evict(self) -> None:
        parents = {parent_of(prefix) for prefix in self.users}
        leaves = [prefix for prefix in self.last_used if prefix not in parents]
        oldest = min(leaves, key=self.last_used.__getitem__)
        assert oldest == min(self.last_used, key=self.last_used.__getitem__)
        del self.last_used[oldest], self.users[oldest]
        self.evicted.append(oldest)

    def tell(self, message: KvManagerInbox) -> list[RingMessage]:
        self.kv.on_message(message, 0)
        answers = [answer for _, answer in self.kv.outgoing]
        self.kv.outgoing.clear()
        return answers

    def check(self) -> None:
        """Free + leased + referenced + cached = total, on both sides."""
        if not self.kv.groups:
            return
        self.kv.verify()
        held = {
            block
            for sequence in self.sequences.values()
            for block in sequence.block_ids[: sequence.num_committed]
        }
        used = sum(
            len(sequence.block_ids) - sequence.num_committed for sequence in self.sequences.values()
        )
        wanted = [self.num_free(), len(self.leased) + used, len(held), len(self.last_used)]
        assert self.kv.groups[0].pool.counts == wanted
        assert sum(wanted) == self.num_blocks

    # What can be done now.

    def can_use(self) -> list[int]:
        return [
            sequence_id
            for sequence_id, sequence in self.sequences.items()
            if self.leased and len(sequence.block_ids) <= len(sequence.labels)
        ]

    def can_commit(self) -> list[int]:
        return [
            sequence_id
            for sequence_id, sequence in self.sequences.items()
            if sequence.num_committed < min(len(sequence.block_ids), len(sequence.labels))
        ]


class KvMachine(RuleBasedStateMachine):
    """Short histories that hypothesis makes shorter when they fail."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(num_blocks=7)

    @rule(
        salt=st.sampled_from(SALTS),
        labels=st.lists(st.integers(0, 1), max_size=3).map(tuple),
        num_more=st.integers(1, BLOCK),
        use_cache=st.integers(0, 9).map(bool),
    )
    def find(self, salt: str, labels: tuple[int, ...], num_more: int, use_cache: bool) -> None:
        self.model.find(salt, labels, num_more, use_cache)

    @rule(num_blocks=st.integers(0, 4))
    def lease(self, num_blocks: int) -> None:
        self.model.lease(num_blocks)

    @rule(num_blocks=st.integers(0, 3))
    def give_back(self, num_blocks: int) -> None:
        self.model.give_back(num_blocks)

    @precondition(lambda self: self.model.can_use())
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        self.model.use(data.draw(st.sampled_from(self.model.can_use())))

    @precondition(lambda self: self.model.can_commit())
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.model.commit(data.draw(st.sampled_from(self.model.can_commit())))

    @precondition(lambda self: self.model.sequences)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.model.release(data.draw(st.sampled_from(sorted(self.model.sequences))))

    @rule()
    def restart(self) -> None:
        self.model.restart()

    @rule()
    def restart_kv_manager(self) -> None:
        self.model.restart_kv_manager()

    @invariant()
    def adds_up(self) -> None:
        self.model.check()


TestKvMachine = KvMachine.TestCase
TestKvMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    ("seed", "num_blocks"), [(1, 3), (2, 8), (3, 20), (4, 60), (5, 12), (6, 9)]
)
def test_long_random_histories_agree_with_the_model(seed: int, num_blocks: int) -> None:
    """17,000 events each, over 10^5 in all, with pools too small for what is asked of them."""
    chance = random.Random(seed)
    model = Model(num_blocks=num_blocks)
    reached: set[str] = set()
    for event in range(17_000):
        random_event(model, chance)
        if event % 16 == 0:
            model.check()
        reached |= {name for name, value in model.kv.counters.items() if value}
    for sequence_id in list(model.sequences):
        model.release(sequence_id)
    model.lease(0)
    model.give_back(len(model.leased))
    model.check()
    free, leased, referenced, cached = model.kv.groups[0].pool.counts
    assert (free + cached, leased, referenced) == (num_blocks, 0, 0)
    for reason in ("short", "none", "request", "evicted", "salt", "diverged", "cold"):
        assert f"prefix_miss_{reason}" in reached


def random_event(model: Model, chance: random.Random) -> None:
    kind = chance.choices(EVENTS, weights=WEIGHTS)[0]
    if kind == "find":
        labels = tuple(chance.randrange(3) for _ in range(chance.randrange(MAX_BLOCKS + 1)))
        use_cache = chance.random() < 0.95
        model.find(chance.choice(SALTS), labels, chance.randint(1, BLOCK), use_cache)
    elif kind == "lease":
        model.lease(0 if model.num_owed > 10 else chance.randint(0, 6))
    elif kind == "give back":
        model.give_back(chance.randint(0, 4))
    elif kind == "use" and (usable := model.can_use()):
        model.use(chance.choice(usable))
    elif kind == "commit" and (ready := model.can_commit()):
        model.commit(chance.choice(ready))
    elif kind == "release" and model.sequences:
        model.release(chance.choice(list(model.sequences)))
    elif kind == "restart":
        model.restart()
    elif kind == "restart kv manager":
        model.restart_kv_manager()
