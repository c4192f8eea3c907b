"""The actor loop, over memory channels and over real ones."""

import itertools
import threading
from typing import Any

import pytest

from pillion.messages import inboxes
from pillion.messages.base import RingMessage
from pillion.messages.blocks import LeaseRequest
from pillion.messages.control import (
    ActorFailed,
    ActorReady,
    ActorStats,
    Drain,
    Drained,
    PeerRestarted,
    Shutdown,
)
from pillion.runtime.actor import ActorLoop, run_actor
from pillion.runtime.channels import Inbox, Outbox, Post
from pillion.runtime.clock import NS_PER_S
from pillion.runtime.config import EngineConfig
from pillion.runtime.memory_channels import MemoryPost, MemoryRing
from pillion.runtime.paths import RunDir
from pillion.runtime.process import ActorContext
from pillion.runtime.process_faults import ProcessFaults
from pillion.runtime.stats import StatsReporter

UNION = Drain | Shutdown


class Recorder:
    """A core that records its calls and answers every Drain."""

    def __init__(self) -> None:
        self.outgoing: list[tuple[str, RingMessage]] = []
        self.finished = False
        self.calls: list[object] = []
        self.deadline_ns: int | None = None
        self.counters: dict[str, int | float] = {}

    def on_message(self, message: Drain | Shutdown, now_ns: int) -> None:
        self.calls.append(message)
        if isinstance(message, Shutdown):
            self.finished = True
        elif message.deadline_ns < 0:
            raise RuntimeError(f"deadline\n{message.deadline_ns}")
        else:
            self.outgoing.append(("peer", Drained(actor="a", epoch=1)))

    def tick(self, now_ns: int) -> int | None:
        self.calls.append(now_ns)
        return self.deadline_ns


def make_loop(core: Recorder, **options: Any) -> tuple[MemoryRing, MemoryPost, ActorLoop[Any]]:
    ring = MemoryRing()
    post = MemoryPost(ring)
    return ring, post, ActorLoop(core, ring.bind("a", UNION), post, **options)


def test_a_turn_takes_all_messages_then_ticks_once_then_sends() -> None:
    core = Recorder()
    ring, post, loop = make_loop(core)
    core.deadline_ns = 99
    post.send("a", Drain(deadline_ns=1))
    post.send("a", Drain(deadline_ns=2))
    assert loop.turn(7, Drain(deadline_ns=0)) == 99
    assert core.calls == [Drain(deadline_ns=0), Drain(deadline_ns=1), Drain(deadline_ns=2), 7]
    assert len(ring.queue("peer")) == 3
    assert core.outgoing == []


def test_what_was_said_before_a_peer_restarted_does_not_reach_its_next_life() -> None:
    """Neither the launcher's word nor the first message of the new life lets the two be mixed up."""

    class Talker(Recorder):
        def on_message(self, message: Any, now_ns: int) -> None:
            self.outgoing.append(
                ("scheduler", Drained(actor="a", epoch=getattr(message, "epoch", 1)))
            )

    for news in (
        PeerRestarted(actor="scheduler", epoch=2),
        LeaseRequest(epoch=2, group=0, num_blocks=1),
    ):
        ring = MemoryRing()
        post = MemoryPost(ring)
        loop = ActorLoop(Talker(), ring.bind("a", UNION | PeerRestarted | LeaseRequest), post)
        for message in (Shutdown(), news, LeaseRequest(epoch=1, group=0, num_blocks=1)):
            post.send("a", message)
        loop.turn(0)
        for life, heard in ((1, [1]), (2, [2, 1])):
            inbox = ring.bind("scheduler", Drained, epoch=life)
            assert [message.epoch for message in inbox.drain()] == heard


def test_the_loop_ends_when_the_core_has_finished() -> None:
    core = Recorder()
    ring, post, loop = make_loop(core)
    post.send("a", Drain(deadline_ns=1))
    post.send("a", Shutdown())
    loop.run()
    assert core.calls[:2] == [Drain(deadline_ns=1), Shutdown()]
    assert len(ring.queue("peer")) == 1  # what was said before the end has been sent


def test_one_message_for_two_actors_is_encoded_once() -> None:
    core = Recorder()
    ring, _, loop = make_loop(core)
    shared = Drained(actor="a", epoch=3)
    core.outgoing += [("x", shared), ("y", shared), ("x", Drained(actor="a", epoch=4))]
    loop.turn(0)
    assert ring.queue("x")[0] is ring.queue("y")[0]
    inbox = ring.bind("x", Drained)
    assert [message.epoch for message in inbox.drain()] == [3, 4]


def test_statistics_go_out_when_they_change_and_at_most_once_a_second() -> None:
    core = Recorder()
    core.deadline_ns = 10 * NS_PER_S
    ring, _, loop = make_loop(core, stats=StatsReporter("a", 1, core))
    launcher = ring.bind("launcher", ActorStats)
    assert loop.turn(5) == 10 * NS_PER_S  # nothing to tell
    core.counters["steps"] = 1
    loop.turn(6)
    assert [stats.counters for stats in launcher.drain()] == [{"steps": 1}]
    core.counters["steps"] = 2
    assert loop.turn(7) == 6 + NS_PER_S  # wakes up to tell it
    assert launcher.drain() == []
    core.deadline_ns = None
    loop.turn(6 + NS_PER_S)
    assert [stats.counters for stats in launcher.drain()] == [{"steps": 2}]
    assert loop.turn(8 + NS_PER_S) == 6 + 2 * NS_PER_S
    assert loop.turn(6 + 2 * NS_PER_S) is None  # and then sleeps
    assert launcher.drain() == []


@pytest.fixture
def context(run_dir: RunDir) -> ActorContext:
    config = EngineConfig(model="fake")
    return ActorContext("a", 2, config, run_dir, ProcessFaults(config, "a", 2))


def run_with(
    context: ActorContext, core: Recorder, *messages: RingMessage
) -> tuple[int, list[Any]]:
    """Runs an actor in a thread. Returns its exit status and what the launcher was told."""
    launcher: Inbox[Any] = Inbox.bind(context.run_dir.inbox("launcher"), inboxes.LauncherInbox)
    status: list[int] = []
    actor = threading.Thread(target=lambda: status.append(run_actor(context, core, UNION)))
    actor.start()
    told = [launcher.receive(5 * NS_PER_S)]
    outbox = Outbox.connect(context.run_dir.inbox("a", 2))
    for message in messages:
        outbox.send(message)
    actor.join(5)
    assert not actor.is_alive()
    last = launcher.receive(NS_PER_S // 5)
    if last is not None:
        told.append(last)
    outbox.close()
    launcher.close()
    return status[0], told


def test_an_actor_reports_ready_and_ends_with_status_0(context: ActorContext) -> None:
    core = Recorder()
    status, told = run_with(context, core, Shutdown())
    assert status == 0
    assert [type(message) for message in told] == [ActorReady]
    assert (told[0].actor, told[0].epoch) == ("a", 2)
    assert not context.run_dir.inbox("a", 2).exists()


def test_an_exception_is_told_in_one_line_with_its_traceback(context: ActorContext) -> None:
    status, told = run_with(context, Recorder(), Drain(deadline_ns=-4))
    assert status == 1
    failed = told[1]
    assert isinstance(failed, ActorFailed)
    assert failed.message == "RuntimeError: deadline -4"
    assert "in on_message" in failed.details


def test_an_inbox_that_cannot_be_bound_is_a_failure(context: ActorContext) -> None:
    launcher: Inbox[Any] = Inbox.bind(context.run_dir.inbox("launcher"), inboxes.LauncherInbox)
    context.run_dir.inbox("a", 2).write_text("in the way")
    assert run_actor(context, Recorder(), UNION) == 1
    failed = launcher.receive(5 * NS_PER_S)
    assert isinstance(failed, ActorFailed)
    assert failed.message.startswith("ConfigError: ")
    launcher.close()


def test_an_actor_wakes_up_for_its_deadline(context: ActorContext) -> None:
    class Ticker(Recorder):
        def tick(self, now_ns: int) -> int | None:
            self.calls.append(now_ns)
            self.finished = len(self.calls) == 5
            return now_ns + NS_PER_S // 100

    core = Ticker()
    assert run_actor(context, core, UNION) == 0
    times = [call for call in core.calls if isinstance(call, int)]
    assert len(times) == 5
    assert all(later - earlier >= NS_PER_S // 100 for earlier, later in itertools.pairwise(times))


def test_post_reaches_several_actors(run_dir: RunDir) -> None:
    receivers: list[Inbox[Any]] = [Inbox.bind(run_dir.inbox(name), UNION) for name in "xyz"]
    post = Post(run_dir)
    for number, name in enumerate("xyz"):
        post.send(name, Drain(deadline_ns=number))
    assert [inbox.receive(5 * NS_PER_S) for inbox in receivers] == [
        Drain(deadline_ns=number) for number in range(3)
    ]
    post.close()
    for inbox in receivers:
        inbox.close()
