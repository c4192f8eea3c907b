"""What is asked for, what is given back, and when memory is known to be short."""

import pytest

from pillion.actors.scheduler.leases import Leases
from pillion.actors.scheduler.limits import Limits
from pillion.actors.scheduler.term import Term
from pillion.messages.base import RingMessage
from pillion.messages.blocks import BlockLease, LeaseRequest, RecallLease, ReturnLease
from pillion.messages.codec import pack_ids, unpack_ids


def make_limits(num_groups: int = 1) -> Limits:
    return Limits(
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=100,
        max_repeat=8,
        steps_in_flight=2,
        num_groups=num_groups,
        num_blocks=200,
        block_size_tokens=16,
    )


@pytest.fixture
def sent() -> list[RingMessage]:
    return []


@pytest.fixture
def leases(sent: list[RingMessage]) -> Leases:
    return Leases(Term(1, 1), make_limits(), sent.append)


def lease(block_ids: range, num_owed: int = 0, group: int = 0) -> BlockLease:
    return BlockLease(epoch=1, group=group, block_ids=pack_ids(block_ids), num_owed=num_owed)


def ask(num_blocks: int, group: int = 0) -> LeaseRequest:
    return LeaseRequest(epoch=1, group=group, num_blocks=num_blocks)


def test_blocks_are_asked_for_once_and_by_the_dozen(
    leases: Leases, sent: list[RingMessage]
) -> None:
    leases.reconcile(low=5, high=20)
    leases.reconcile(low=5, high=20)
    assert sent == [ask(20)]
    leases.on_lease(lease(range(20)))
    leases.take(16)
    leases.reconcile(low=5, high=10)
    assert sent[1:] == [ask(10)]
    leases.on_lease(lease(range(20, 30)))
    leases.reconcile(low=15, high=16)
    assert sent[2:] == [ask(12)]


def test_memory_is_short_when_the_kv_manager_has_seen_every_request(leases: Leases) -> None:
    assert not leases.is_short
    leases.reconcile(low=5, high=20)
    assert not leases.is_short  # not answered
    leases.on_lease(lease(range(4), num_owed=16))
    assert leases.is_short
    leases.ask_again()
    assert not leases.is_short
    leases.on_lease(lease(range(0), num_owed=17))
    assert leases.is_short
    leases.on_lease(lease(range(4, 21)))
    assert not leases.is_short
    assert leases.num_free == 21


def test_what_is_owed_is_withdrawn_when_it_is_not_needed(
    leases: Leases, sent: list[RingMessage]
) -> None:
    leases.reconcile(low=50, high=60)
    leases.on_lease(lease(range(10), num_owed=50))
    leases.reconcile(low=2, high=8)
    assert sent[1:] == [ask(0)]
    assert not leases.is_short
    leases.on_lease(lease(range(10, 13)))  # it had been on its way
    leases.reconcile(low=2, high=8)
    assert len(sent) == 2
    assert leases.num_free == 13


def test_a_surplus_goes_back(leases: Leases, sent: list[RingMessage]) -> None:
    leases.on_lease(lease(range(100)))
    leases.reconcile(low=2, high=8)
    (returned,) = sent
    assert isinstance(returned, ReturnLease)
    assert sorted(unpack_ids(returned.block_ids) + leases.take(8)[0].tolist()) == list(range(100))


def test_a_recall_takes_no_more_than_is_free(leases: Leases, sent: list[RingMessage]) -> None:
    leases.on_lease(lease(range(10)))
    leases.on_recall(RecallLease(epoch=1, group=0, num_blocks=4))
    assert leases.num_free == 6
    leases.on_recall(RecallLease(epoch=1, group=0, num_blocks=40))
    assert leases.num_free == 0
    leases.on_recall(RecallLease(epoch=1, group=0, num_blocks=40))
    assert [type(message) for message in sent] == [ReturnLease, ReturnLease]


def test_every_group_gives_the_same_number(sent: list[RingMessage]) -> None:
    leases = Leases(Term(1, 1), make_limits(num_groups=2), sent.append)
    leases.reconcile(low=5, high=20)
    assert sent == [ask(20, 0), ask(20, 1)]
    leases.on_lease(lease(range(20)))
    assert leases.num_free == 0
    leases.on_lease(lease(range(100, 107), num_owed=13, group=1))
    assert (leases.num_free, leases.num_leased, leases.is_short) == (7, 27, True)
    first, second = leases.take(5)
    assert (len(first), len(second)) == (5, 5)
    assert min(second) >= 100 > max(first)
