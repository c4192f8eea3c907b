"""The KV manager's answers, message by message."""

from collections.abc import Callable

import pytest

from pillion.actors.kv_manager.kv_manager import KvManager
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
from pillion.messages.control import EngineGeometry, KvGroupGeometry, PeerRestarted, Shutdown
from pillion.messages.inboxes import KvManagerInbox
from pillion.runtime.errors import InvariantBroken

BLOCK = 8  # tokens


def geometry(
    *num_blocks: int, kind: str = "full_attention", block: int = BLOCK, epoch: int = 1
) -> EngineGeometry:
    groups = [
        KvGroupGeometry(
            kind=kind, num_layers=1, num_blocks=number, block_size_tokens=block, block_bytes=64
        )
        for number in num_blocks
    ]
    return EngineGeometry(
        epoch=epoch,
        model_name="m",
        architecture="a",
        device="cpu",
        dtype="float32",
        vocab_size=100,
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        kv_groups=groups,
        weights_bytes=0,
        kv_bytes=0,
    )


class Bench:
    """A KV manager with a scheduler's hands."""

    def __init__(self, *num_blocks: int, caching: bool = True) -> None:
        self.kv = KvManager(epoch=1, enable_prefix_caching=caching, verify_always=True)
        self.kv.on_message(geometry(*num_blocks), 0)
        self.epoch = 1

    def tell(self, message: KvManagerInbox) -> list[RingMessage]:
        self.kv.on_message(message, 0)
        answers = [answer for destination, answer in self.kv.outgoing if destination == "scheduler"]
        self.kv.outgoing.clear()
        return answers

    def find_message(
        self, sequence_id: int, tokens: list[int], salt: str = "", **extra: object
    ) -> FindPrefix:
        return FindPrefix(
            epoch=self.epoch,
            sequence_id=sequence_id,
            token_ids=pack_ids(tokens),
            salt=salt,
            **extra,  # type: ignore[arg-type]
        )

    def find(
        self, sequence_id: int, tokens: list[int], salt: str = "", **extra: object
    ) -> PrefixFound:
        (answer,) = self.tell(self.find_message(sequence_id, tokens, salt, **extra))
        assert isinstance(answer, PrefixFound)
        assert answer.num_cached_tokens == BLOCK * len(unpack_ids(answer.block_ids[0]))
        assert answer.num_cached_tokens < len(tokens)
        return answer

    def lease(self, num_blocks: int, group: int = 0) -> list[int]:
        answers = self.tell(LeaseRequest(epoch=self.epoch, group=group, num_blocks=num_blocks))
        assert isinstance(answers[0], BlockLease)
        return unpack_ids(answers[0].block_ids)

    def commit(self, sequence_id: int, start: int, tokens: list[int], *blocks: list[int]) -> None:
        message = CommitBlocks(
            epoch=self.epoch,
            sequence_id=sequence_id,
            start=start,
            token_ids=pack_ids(tokens),
            block_ids=[pack_ids(ids) for ids in blocks],
        )
        assert self.tell(message) == []

    def release(self, sequence_id: int, *blocks: list[int]) -> list[RingMessage]:
        return self.tell(
            ReleaseBlocks(
                epoch=self.epoch,
                sequence_id=sequence_id,
                block_ids=[pack_ids(ids) for ids in blocks],
            )
        )

    def run(self, sequence_id: int, tokens: list[int], salt: str = "") -> list[int]:
        """Computes a prompt of whole blocks to its end, and returns its blocks."""
        found = self.find(sequence_id, [*tokens, 0], salt)
        blocks = unpack_ids(found.block_ids[0])
        fresh = self.lease(len(tokens) // BLOCK - len(blocks))
        self.commit(sequence_id, found.num_cached_tokens, tokens[found.num_cached_tokens :], fresh)
        self.release(sequence_id, blocks + fresh)
        return blocks + fresh

    def counts(self, group: int = 0) -> tuple[int, int, int, int]:
        """Free, leased, referenced, cached."""
        free, leased, referenced, cached = self.kv.groups[group].pool.counts
        return free, leased, referenced, cached


def prompt(first: int, num_blocks: int) -> list[int]:
    return [first + position for position in range(num_blocks * BLOCK)]


def test_a_prefix_is_shared_by_later_and_by_concurrent_sequences() -> None:
    bench = Bench(10)
    tokens = prompt(1, 3)
    assert bench.find(1, tokens).miss_reason == "cold"
    blocks = bench.lease(3)
    bench.commit(1, 0, tokens, blocks)
    assert bench.counts() == (7, 0, 3, 0)

    concurrent = bench.find(2, [*tokens, 5])
    assert (unpack_ids(concurrent.block_ids[0]), concurrent.miss_reason) == (blocks, "")
    bench.release(1, blocks)
    assert bench.counts() == (7, 0, 3, 0)
    bench.release(2, blocks)
    assert bench.counts() == (7, 0, 0, 3)

    later = bench.find(3, [*tokens, 5])
    assert unpack_ids(later.block_ids[0]) == blocks


@pytest.mark.parametrize(
    ("num_tokens", "num_cached"), [(16, 8), (17, 16), (24, 16), (25, 24), (40, 24)]
)
def test_the_last_token_is_never_cached(num_tokens: int, num_cached: int) -> None:
    bench = Bench(10)
    bench.run(1, prompt(1, 3))
    found = bench.find(2, prompt(1, 5)[:num_tokens])
    assert found.num_cached_tokens == num_cached


def test_every_miss_has_its_reason() -> None:
    bench = Bench(6)
    tokens = prompt(1, 3)
    bench.run(1, tokens)
    assert bench.find(2, tokens[:BLOCK]).miss_reason == "short"
    assert bench.find(3, tokens, use_cache=False).miss_reason == "request"
    assert bench.find(4, prompt(50, 3)).miss_reason == "cold"
    assert bench.find(5, tokens, "other").miss_reason == "salt"
    assert bench.find(6, tokens[: 2 * BLOCK] + prompt(50, 1) + [0]).miss_reason == "diverged"
    # The blocks end where this prompt goes on: nobody had anything there.
    assert bench.find(7, tokens + prompt(50, 1) + [0]).miss_reason == "cold"
    assert bench.find(8, [*tokens, 0]).miss_reason == ""
    assert bench.find(9, tokens, adapter="a").miss_reason == "cold"


def test_an_evicted_prefix_is_called_evicted_until_it_is_cached_again() -> None:
    bench = Bench(4)
    tokens = prompt(1, 2)
    bench.run(1, tokens)
    leased = bench.lease(4)
    assert bench.find(2, [*tokens, 0]).miss_reason == "evicted"
    bench.commit(2, 0, tokens, leased[:2])
    assert bench.find(3, [*tokens, 0]).num_cached_tokens == 16


def test_adapter_and_salt_of_one_name_do_not_meet() -> None:
    bench = Bench(10)
    found = bench.find(1, prompt(1, 2), adapter="x")
    assert found.num_cached_tokens == 0
    bench.commit(1, 0, prompt(1, 2), bench.lease(2))
    assert bench.find(2, prompt(1, 2), "x").num_cached_tokens == 0
    assert bench.find(3, prompt(1, 2)).num_cached_tokens == 0
    assert bench.find(4, prompt(1, 2), adapter="x").num_cached_tokens == 8


def test_least_recently_used_leaves_go_first_and_children_before_parents() -> None:
    bench = Bench(5)
    trunk = prompt(1, 1)
    first = bench.run(1, trunk + prompt(100, 1))
    second = bench.run(2, trunk + prompt(200, 1))
    third = bench.run(3, prompt(300, 2))
    assert first[0] == second[0]
    bench.run(4, trunk + prompt(100, 1))  # the first one is used again
    assert bench.counts() == (0, 0, 0, 5)
    order = [block for _ in range(5) for block in bench.lease(1)]
    assert order == [second[1], third[1], third[0], first[1], first[0]]


def test_a_duplicate_replaces_an_idle_block_and_waits_behind_a_used_one() -> None:
    bench = Bench(10)
    tokens = prompt(1, 2)
    for sequence_id in (1, 2):
        bench.find(sequence_id, tokens)
    first, second = bench.lease(2), bench.lease(2)
    bench.commit(1, 0, tokens, first)
    bench.commit(2, 0, tokens, second)
    assert bench.counts() == (6, 0, 4, 0)
    # The one that was indexed ends first: the duplicate takes its place and its memory is free.
    bench.release(1, first)
    assert bench.counts() == (8, 0, 2, 0)
    assert unpack_ids(bench.find(3, [*tokens, 0]).block_ids[0]) == second
    bench.release(2, second)
    bench.release(3, second)
    assert bench.counts() == (8, 0, 0, 2)

    bench.find(4, tokens, use_cache=False)
    fresh = bench.lease(2)
    bench.commit(4, 0, tokens, fresh)
    assert bench.counts() == (8, 0, 2, 0)
    assert unpack_ids(bench.find(5, [*tokens, 0]).block_ids[0]) == fresh


def test_a_duplicate_that_ends_first_is_freed() -> None:
    bench = Bench(10)
    tokens = prompt(1, 1)
    bench.find(1, tokens)
    bench.find(2, tokens)
    first, second = bench.lease(1), bench.lease(1)
    bench.commit(1, 0, tokens, first)
    bench.commit(2, 0, tokens, second)
    bench.release(2, second)
    assert bench.counts() == (9, 0, 1, 0)
    assert unpack_ids(bench.find(3, [*tokens, 0]).block_ids[0]) == first


def test_a_shortfall_is_owed_and_paid_when_blocks_come_free() -> None:
    bench = Bench(4)
    held = bench.lease(3)
    (answer,) = bench.tell(LeaseRequest(epoch=1, group=0, num_blocks=3))
    assert isinstance(answer, BlockLease)
    assert (len(unpack_ids(answer.block_ids)), answer.num_owed) == (1, 2)
    (paid,) = bench.tell(ReturnLease(epoch=1, group=0, block_ids=pack_ids(held[:1])))
    assert paid == BlockLease(epoch=1, group=0, block_ids=pack_ids(held[:1]), num_owed=1)

    # A release pays as well, from what it leaves in the cache.
    bench.find(1, prompt(1, 2))
    bench.commit(1, 0, prompt(1, 1), held[1:2])
    (paid,) = bench.release(1, held[1:2])
    assert paid == BlockLease(epoch=1, group=0, block_ids=pack_ids(held[1:2]), num_owed=0)


def test_what_is_owed_can_be_withdrawn() -> None:
    bench = Bench(2)
    held = bench.lease(5)
    (answer,) = bench.tell(LeaseRequest(epoch=1, group=0, num_blocks=0))
    assert answer == BlockLease(epoch=1, group=0, block_ids=b"", num_owed=0)
    assert bench.tell(ReturnLease(epoch=1, group=0, block_ids=pack_ids(held))) == []
    assert bench.counts() == (2, 0, 0, 0)


def test_release_frees_uncommitted_blocks_and_caches_the_others() -> None:
    bench = Bench(6)
    bench.find(1, prompt(1, 3))
    blocks = bench.lease(4)
    bench.commit(1, 0, prompt(1, 2), blocks[:2])
    bench.release(1, blocks)
    assert bench.counts() == (4, 0, 0, 2)
    assert not bench.kv.sequences


def test_a_hit_is_the_longest_prefix_of_every_group() -> None:
    bench = Bench(8, 4)
    tokens = prompt(1, 3)
    bench.find(1, tokens)
    first, second = bench.lease(3), bench.lease(3, group=1)
    bench.commit(1, 0, tokens, first, second)
    bench.release(1, first, second)
    # Group 1 must give up one cached block, group 0 still has all three.
    leased = bench.lease(2, group=1)
    found = bench.find(2, [*tokens, 0])
    assert [unpack_ids(ids) for ids in found.block_ids] == [first[:2], second[:2]]
    assert (found.num_cached_tokens, found.miss_reason) == (16, "evicted")
    bench.commit(2, 16, tokens[16:], bench.lease(1), leased[:1])
    assert bench.counts(0) == (5, 0, 3, 0)


def test_without_caching_only_the_samples_of_one_request_share() -> None:
    bench = Bench(12, caching=False)
    tokens = prompt(1, 2)
    bench.run(1, tokens)
    assert bench.find(2, [*tokens, 0]).miss_reason == "disabled"
    salt = f"{PRIVATE_SALT_PREFIX}7"
    assert bench.find(7, [*tokens, 0], salt).miss_reason == "disabled"
    bench.commit(7, 0, tokens, bench.lease(2))
    sibling = bench.find(8, [*tokens, 0], salt)
    assert (sibling.num_cached_tokens, sibling.miss_reason) == (16, "")
    assert bench.find(9, tokens[:4]).miss_reason == "short"


def test_a_new_scheduler_finds_everything_free_or_cached() -> None:
    bench = Bench(8)
    bench.find(1, prompt(1, 3))
    blocks = bench.lease(12)
    bench.commit(1, 0, prompt(1, 2), blocks[:2])
    bench.tell(PeerRestarted(actor="scheduler", epoch=2))
    assert bench.counts() == (6, 0, 0, 2)
    assert not bench.kv.sequences
    # Late words of the old one are dropped.
    assert bench.release(1, blocks[:2]) == []
    bench.epoch = 2
    assert bench.find(1, prompt(1, 3)).num_cached_tokens == 16
    bench.tell(PeerRestarted(actor="scheduler", epoch=2))
    assert 1 in bench.kv.sequences
    bench.tell(PeerRestarted(actor="detokenizer", epoch=9))
    assert 1 in bench.kv.sequences


def test_a_new_scheduler_may_be_faster_than_the_word_of_it() -> None:
    bench = Bench(8)
    bench.lease(8)
    bench.epoch = 3
    assert len(bench.lease(8)) == 8


def test_with_a_new_worker_nothing_is_left() -> None:
    bench = Bench(8)
    tokens = prompt(1, 2)
    bench.run(1, prompt(50, 2))
    bench.find(2, [*tokens, 0])
    blocks = bench.lease(3)
    bench.commit(2, 0, tokens, blocks[:2])
    bench.tell(PeerRestarted(actor="gpu_worker", epoch=2))
    assert (bench.kv.groups, list(bench.kv.sequences)) == ([], [])
    # The scheduler has not heard of it, and what it says is about the memory that is gone.
    assert bench.release(2, blocks[:2]) == []
    bench.tell(geometry(9, epoch=2))
    assert bench.counts() == (9, 0, 0, 0)
    (found,) = bench.tell(bench.find_message(2, [*tokens, 0], worker_epoch=2))
    assert isinstance(found, PrefixFound)
    assert (found.num_cached_tokens, found.worker_epoch) == (0, 2)


def test_the_scheduler_may_be_the_first_to_know_of_a_new_worker() -> None:
    bench = Bench(8)
    tokens = prompt(1, 2)
    bench.run(1, tokens)
    assert bench.tell(bench.find_message(2, [*tokens, 0], worker_epoch=2)) == []
    # Sent before the worker died.
    assert bench.tell(geometry(8)) == []
    (found,) = bench.tell(geometry(8, epoch=2))
    assert isinstance(found, PrefixFound)
    assert found.num_cached_tokens == 0
    bench.tell(PeerRestarted(actor="gpu_worker", epoch=2))
    assert 2 in bench.kv.sequences


def held(*sequences: HeldSequence, leased: list[int], epoch: int = 1) -> HeldBlocks:
    return HeldBlocks(epoch=epoch, leased=[pack_ids(leased)], sequences=list(sequences))


def held_sequence(sequence_id: int, tokens: list[int], block_ids: list[int]) -> HeldSequence:
    return HeldSequence(
        sequence_id=sequence_id,
        salt="",
        token_ids=pack_ids(tokens),
        block_ids=[pack_ids(block_ids)],
    )


def test_a_new_kv_manager_learns_what_the_scheduler_holds() -> None:
    bench = Bench(8)
    tokens = prompt(1, 2)
    bench.tell(
        held(held_sequence(1, tokens, [5, 3]), held_sequence(2, tokens, [5, 4]), leased=[7, 0])
    )
    # Of blocks 3 and 4, which have the same content, one is found by others.
    assert bench.counts() == (3, 2, 3, 0)
    assert bench.find(3, [*tokens, 0]).num_cached_tokens == 16
    assert sorted(bench.lease(3)) == [1, 2, 6]
    bench.commit(1, 16, prompt(9, 1), [7])
    bench.release(1, [5, 3, 7, 0])
    bench.release(2, [5, 4])
    assert bench.counts() == (2, 3, 2, 1)
    assert bench.find(4, [*tokens, *prompt(9, 1), 0]).num_cached_tokens == 24


def test_what_is_held_is_told_once() -> None:
    bench = Bench(8)
    bench.tell(held(leased=[1]))
    with pytest.raises(InvariantBroken, match="a KV manager that knows it"):
        bench.tell(held(leased=[2]))


def release_twice(bench: Bench) -> None:
    bench.find(1, prompt(1, 1))
    bench.release(1, [])
    bench.release(1, [])


def commit_with_a_gap(bench: Bench) -> None:
    bench.find(1, prompt(1, 3))
    bench.commit(1, BLOCK, prompt(1, 1), bench.lease(1))


def commit_half_a_block(bench: Bench) -> None:
    bench.find(1, prompt(1, 3))
    bench.commit(1, 0, prompt(1, 1)[:4], bench.lease(1))


def commit_too_few_blocks(bench: Bench) -> None:
    bench.find(1, prompt(1, 3))
    bench.commit(1, 0, prompt(1, 2), bench.lease(1))


def commit_what_is_not_leased(bench: Bench) -> None:
    bench.find(1, prompt(1, 3))
    bench.commit(1, 0, prompt(1, 1), [3])


def commit_for_too_many_groups(bench: Bench) -> None:
    bench.find(1, prompt(1, 3))
    bench.commit(1, 0, prompt(1, 1), bench.lease(1), bench.lease(1))


def release_other_blocks(bench: Bench) -> None:
    bench.find(1, prompt(1, 3))
    blocks = bench.lease(2)
    bench.commit(1, 0, prompt(1, 1), blocks[:1])
    bench.release(1, blocks[::-1])


def release_no_group(bench: Bench) -> None:
    bench.find(1, prompt(1, 1))
    bench.release(1)


def open_twice(bench: Bench) -> None:
    bench.find(1, prompt(1, 1))
    bench.find(1, prompt(1, 1))


def return_what_is_free(bench: Bench) -> None:
    bench.tell(ReturnLease(epoch=1, group=0, block_ids=pack_ids([0])))


def return_twice(bench: Bench) -> None:
    (block,) = bench.lease(1)
    bench.tell(ReturnLease(epoch=1, group=0, block_ids=pack_ids([block, block])))


def return_below_the_pool(bench: Bench) -> None:
    bench.tell(ReturnLease(epoch=1, group=0, block_ids=pack_ids([-1])))


def return_above_the_pool(bench: Bench) -> None:
    bench.tell(ReturnLease(epoch=1, group=0, block_ids=pack_ids([8])))


def return_to_no_group(bench: Bench) -> None:
    bench.tell(ReturnLease(epoch=1, group=1, block_ids=b""))


def lease_less_than_nothing(bench: Bench) -> None:
    bench.lease(-1)


def find_nothing(bench: Bench) -> None:
    bench.find(1, [])


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (release_twice, "sequence 1 is not open"),
        (commit_with_a_gap, "its next block starts at 0"),
        (commit_half_a_block, "sequence 1 commits 4 tokens"),
        (commit_too_few_blocks, "sequence 1 commits 16 tokens"),
        (commit_what_is_not_leased, "block 3 should pass from LEASED to REFERENCED but is FREE"),
        (commit_for_too_many_groups, "sequence 1 commits"),
        (release_other_blocks, r"releases blocks \[1, 0\] and had committed \[0\]"),
        (release_no_group, "0 groups of 1"),
        (open_twice, "already open: True"),
        (return_what_is_free, "block 0 should pass from LEASED to FREE but is FREE"),
        (return_twice, "from LEASED to FREE but is FREE"),
        (return_below_the_pool, "block -1 is not one of 0 to 7"),
        (return_above_the_pool, "block 8 is not one of 0 to 7"),
        (return_to_no_group, "KV group 1 is not one of 1"),
        (lease_less_than_nothing, "a lease of -1 blocks"),
        (find_nothing, "with 0 bytes of tokens"),
    ],
)
def test_contradictions_end_the_actor_with_the_values(
    break_it: Callable[[Bench], None], says: str
) -> None:
    with pytest.raises(InvariantBroken, match=says):
        break_it(Bench(8))


def test_what_comes_before_the_geometry_is_answered_after_it() -> None:
    kv = KvManager(epoch=1, enable_prefix_caching=True, verify_always=True)
    kv.on_message(LeaseRequest(epoch=1, group=0, num_blocks=2), 0)
    kv.on_message(FindPrefix(epoch=1, sequence_id=1, token_ids=pack_ids([1, 2]), salt=""), 0)
    assert kv.tick(0) is None
    assert kv.outgoing == []
    kv.on_message(geometry(8), 0)
    lease, found = (message for _, message in kv.outgoing)
    assert lease == BlockLease(epoch=1, group=0, block_ids=pack_ids([0, 1]), num_owed=0)
    assert isinstance(found, PrefixFound)


def test_nonsense_before_the_geometry_ends_the_actor_with_it() -> None:
    kv = KvManager(epoch=1, enable_prefix_caching=True)
    kv.on_message(ReturnLease(epoch=1, group=0, block_ids=pack_ids([3])), 0)
    with pytest.raises(InvariantBroken, match="block 3 should pass from LEASED to FREE"):
        kv.on_message(geometry(8), 0)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (geometry(8, kind="odd"), "'odd' is not one of full_attention"),
        (geometry(0), "a KV group of 0 blocks of 8 tokens"),
        (geometry(8, block=0), "a KV group of 8 blocks of 0 tokens"),
        (geometry(), r"one common block size, got \[\]"),
    ],
)
def test_a_geometry_that_makes_no_sense_is_refused(message: EngineGeometry, says: str) -> None:
    with pytest.raises(InvariantBroken, match=says):
        KvManager(epoch=1, enable_prefix_caching=True).on_message(message, 0)


def test_gauges_and_counters_tell_what_there_is() -> None:
    bench = Bench(4)
    bench.run(1, prompt(1, 2))
    bench.find(2, [*prompt(1, 2), 0])
    bench.lease(3)
    assert bench.kv.tick(0) is None
    assert bench.kv.gauges == {
        "sequences": 1,
        "free_blocks_0": 0,
        "leased_blocks_0": 2,
        "referenced_blocks_0": 2,
        "cached_blocks_0": 0,
        "owed_blocks_0": 1,
    }
    assert bench.kv.counters == {
        "prefix_lookups": 2,
        "prefix_tokens": 34,
        "prefix_cached_tokens": 16,
        "prefix_miss_cold": 1,
        "prefix_miss_none": 1,
        "evicted_blocks_0": 0,
    }


def test_shutdown_ends_the_loop() -> None:
    bench = Bench(4)
    assert not bench.kv.finished
    bench.tell(Shutdown())
    assert bench.kv.finished


def test_who_knows_that_nothing_can_be_found_gets_no_answer() -> None:
    bench = Bench(8)
    assert bench.tell(bench.find_message(1, [1, 2, 3], wants_answer=False)) == []
    assert set(bench.kv.sequences) == {1}
    assert bench.kv.counters["prefix_miss_short"] == 1
    bench.release(1, [])
    assert not bench.kv.sequences
