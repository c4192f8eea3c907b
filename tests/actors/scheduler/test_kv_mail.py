"""What the KV manager hears at once and what may wait."""

import pytest
from msgspec.structs import replace
from scheduler_bench import Bench

from pillion.actors.scheduler import kv_mail
from pillion.actors.scheduler.kv_mail import MAX_WAITING, KvMail
from pillion.messages.base import RingMessage
from pillion.messages.blocks import BlockLease, FindPrefix, LeaseRequest, ReleaseBlocks
from pillion.messages.control import PeerRestarted

PATIENCE_NS = 1_000


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch, no_patience: None) -> None:
    monkeypatch.setattr(kv_mail, "PATIENCE_NS", PATIENCE_NS)


def find(sequence_id: int, wants_answer: bool = False) -> FindPrefix:
    return FindPrefix(
        epoch=1, sequence_id=sequence_id, token_ids=b"", salt="", wants_answer=wants_answer
    )


def release(sequence_id: int) -> ReleaseBlocks:
    return ReleaseBlocks(epoch=1, sequence_id=sequence_id, block_ids=[b""])


def test_what_wants_no_answer_leaves_a_moment_later_and_together() -> None:
    outgoing: list[tuple[str, RingMessage]] = []
    mail = KvMail(outgoing)
    mail.leave_if_due(5)
    assert mail.due_ns is None
    mail.add(find(1))
    mail.leave_if_due(5)
    mail.add(release(1))
    mail.leave_if_due(4 + PATIENCE_NS)
    assert (outgoing, mail.due_ns) == ([], 5 + PATIENCE_NS)
    mail.leave_if_due(5 + PATIENCE_NS)
    assert outgoing == [("kv_manager", find(1)), ("kv_manager", release(1))]
    assert mail.due_ns is None


@pytest.mark.parametrize(
    "last", [find(2, wants_answer=True), LeaseRequest(epoch=1, group=0, num_blocks=1)]
)
def test_what_wants_an_answer_leaves_behind_what_came_before(last: RingMessage) -> None:
    outgoing: list[tuple[str, RingMessage]] = []
    mail = KvMail(outgoing)
    for message in (find(1), last):
        mail.add(message)
    mail.leave_if_due(0)
    assert outgoing == [("kv_manager", find(1)), ("kv_manager", last)]


def test_many_do_not_wait() -> None:
    outgoing: list[tuple[str, RingMessage]] = []
    mail = KvMail(outgoing)
    for number in range(MAX_WAITING):
        assert not outgoing
        mail.add(release(number))
        mail.leave_if_due(0)
    assert len(outgoing) == MAX_WAITING


def test_a_short_request_has_its_answer_before_the_kv_manager_is_woken() -> None:
    bench = Bench(num_blocks=400, block_size=16)
    bench.to_kv.clear()
    bench.submit(100, 5, max_tokens=1)
    bench.now_ns += PATIENCE_NS - 1
    bench.step()
    assert bench.scheduler.counters["finished_length"] == 1
    assert not bench.to_kv
    bench.now_ns += 1
    bench.turn()
    assert [type(message) for message in bench.to_kv] == [FindPrefix]


def test_a_new_kv_manager_hears_nothing_that_was_meant_for_the_one_before() -> None:
    bench = Bench(num_blocks=400, block_size=16)
    bench.submit(100, 5, max_tokens=20)
    bench.to_kv.clear()
    bench.kv_answers = False
    bench.submit(101, 5, max_tokens=20)
    bench.scheduler.on_message(PeerRestarted(actor="kv_manager", epoch=2), bench.now_ns)
    bench.scheduler.tick(bench.now_ns)
    assert not any(isinstance(message, FindPrefix) for _, message in bench.scheduler.outgoing)


def test_who_hears_that_nothing_is_free_says_what_comes_free() -> None:
    """The KV manager could not know of it; nobody is to be preempted for want of blocks that are on their way."""
    bench = Bench(num_blocks=12, block_size=4, kv_answers=False)
    bench.submit(100, 3)
    asked = bench.asked(LeaseRequest)[-1]
    bench.to_kv.clear()
    bench.abort(100)
    assert not bench.to_kv
    nothing = BlockLease(epoch=1, group=0, block_ids=b"", num_owed=asked.num_blocks)
    bench.send(nothing)
    assert [type(message) for message in bench.to_kv] == [ReleaseBlocks, LeaseRequest]
    bench.to_kv.clear()
    bench.send(replace(nothing, num_owed=asked.num_blocks + 1))
    assert not bench.to_kv
