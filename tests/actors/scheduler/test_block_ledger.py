"""What the KV manager is told of a sequence's blocks."""

import pytest
from test_leases import lease, make_limits
from test_queues import waiting

from pillion.actors.scheduler.block_ledger import MAX_COMMITS_PER_TICK, BlockLedger
from pillion.actors.scheduler.fair_share import Client
from pillion.actors.scheduler.sequence import Sequence
from pillion.actors.scheduler.term import Term
from pillion.messages.base import RingMessage
from pillion.messages.blocks import (
    CommitBlocks,
    FindPrefix,
    LeaseRequest,
    PrefixFound,
    ReleaseBlocks,
)
from pillion.messages.codec import pack_ids, unpack_ids


@pytest.fixture
def sent() -> list[RingMessage]:
    return []


@pytest.fixture
def ledger(sent: list[RingMessage]) -> BlockLedger:
    ledger = BlockLedger(Term(1, 1), make_limits(), sent.append)
    ledger.leases.on_lease(lease(range(100, 1000)))
    return ledger


def opened(ledger: BlockLedger, sequence_id: int, num_tokens: int = 40) -> Sequence:
    """Blocks of 16: one is cached."""
    sequence = waiting(sequence_id, Client(1, 0), num_tokens)
    ledger.open(sequence)
    found = PrefixFound(
        epoch=1,
        sequence_id=sequence_id,
        block_ids=[pack_ids([5])],
        num_cached_tokens=16,
        miss_reason="cold",
    )
    ledger.found(sequence, found)
    ledger.grow(sequence, 2)
    return sequence


def test_commits_start_behind_the_cached_prefix_and_follow_each_other(
    ledger: BlockLedger, sent: list[RingMessage]
) -> None:
    sequence = opened(ledger, 1, 60)
    ledger.grow(sequence, 1)
    ledger.commit(sequence)
    assert [type(message) for message in sent] == [FindPrefix]
    sequence.num_computed_tokens = 31
    ledger.commit(sequence)
    assert len(sent) == 1
    for computed in (33, 47, 48):
        sequence.num_computed_tokens = computed
        ledger.commit(sequence)
    first, second = sent[1:]
    assert isinstance(first, CommitBlocks)
    assert isinstance(second, CommitBlocks)
    assert (first.start, second.start) == (16, 32)
    assert unpack_ids(first.token_ids) == list(range(16, 32))
    table = sequence.block_ids[0].tolist()
    assert [*unpack_ids(first.block_ids[0]), *unpack_ids(second.block_ids[0])] == table[1:3]


def test_generated_blocks_are_committed_a_bounded_number_at_a_time(
    ledger: BlockLedger, sent: list[RingMessage]
) -> None:
    num_sequences = 2 * MAX_COMMITS_PER_TICK + 5
    for sequence_id in range(num_sequences):
        sequence = opened(ledger, sequence_id)
        sequence.num_computed_tokens = 32
        ledger.note_full(sequence)
        ledger.note_full(sequence)
    sent.clear()
    left = [ledger.commit_some() for _ in range(3)]
    assert left == [True, True, False]
    assert [message.sequence_id for message in sent] == list(range(num_sequences))  # type: ignore[attr-defined]
    assert not ledger.commit_some()
    assert len(sent) == num_sequences


def test_a_release_commits_what_is_full_and_names_every_block(
    ledger: BlockLedger, sent: list[RingMessage]
) -> None:
    sequence = opened(ledger, 1)
    sequence.num_computed_tokens = 39
    ledger.note_full(sequence)
    table = sequence.block_ids[0].tolist()
    sent.clear()
    ledger.release(sequence)
    commit, release = sent
    assert isinstance(commit, CommitBlocks)
    assert isinstance(release, ReleaseBlocks)
    assert unpack_ids(release.block_ids[0]) == table
    assert (sequence.num_blocks, sequence.capacity_tokens, sequence.num_computed_tokens) == (
        0,
        0,
        0,
    )
    assert not ledger.commit_some()
    assert len(sent) == 2


def test_content_that_is_not_to_be_trusted_is_not_committed(
    ledger: BlockLedger, sent: list[RingMessage]
) -> None:
    sequence = opened(ledger, 1)
    sequence.num_computed_tokens = 39
    ledger.note_full(sequence)
    sent.clear()
    ledger.release(sequence, keep_content=False)
    assert [type(message) for message in sent] == [ReleaseBlocks]


def test_a_release_while_blocks_are_owed_asks_what_came_of_it(
    ledger: BlockLedger, sent: list[RingMessage]
) -> None:
    sequence = opened(ledger, 1)
    ledger.leases.reconcile(low=950, high=1000)
    ledger.leases.on_lease(lease(range(0), num_owed=102))
    assert ledger.leases.is_short
    ledger.release(sequence)
    assert isinstance(sent[-1], LeaseRequest)
    assert not ledger.leases.is_short
