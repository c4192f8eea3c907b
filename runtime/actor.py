"""The loop that turns a pure core into an actor: messages in, one tick, messages out."""

import gc
import logging
import os
import traceback
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from pillion.messages.base import RingMessage
from pillion.messages.control import ActorFailed, ActorReady
from pillion.messages.inboxes import lives_in
from pillion.runtime.channels import Inbox, Post
from pillion.runtime.clock import now_ns
from pillion.runtime.process import ActorContext
from pillion.runtime.progress import Progress
from pillion.runtime.stats import StatsReporter
from pillion.runtime.watchdog import longest_sleep_ns

T = TypeVar("T", bound=RingMessage)
In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)

logger = logging.getLogger(__name__)


class Core(Protocol[In]):
    """An actor's state and rules, without socket or clock.

    It may also have `counters` and `gauges`, dicts that runtime/stats.py reports; they are
    changed in place and never replaced. It may have `waits_for_device`: true after a turn that did
    nothing but look whether a device has finished; the time until the next turn that does is no progress.
    And it may have `has_worked`: true once it has done what it is for.
    """

    outgoing: list[
        tuple[str, RingMessage]
    ]  # (destination actor, message); the loop sends and clears
    finished: bool  # the loop ends

    def on_message(self, message: In, now_ns: int) -> None:
        """Takes one message."""

    def tick(self, now_ns: int) -> int | None:
        """Work after all messages that were there. Returns when to be called next; None: after a message."""


class Source(Protocol[Out]):
    """Where messages come from: channels.Inbox or memory_channels.MemoryInbox."""

    def receive(self, timeout_ns: int | None) -> Out | None:
        """The next message, or None after the timeout."""

    def drain(self) -> Sequence[Out]:
        """All messages that are there."""


class Sink(Protocol):
    """Where messages go: channels.Post or memory_channels.MemoryPost."""

    def send_bytes(self, destination: str, data: bytes) -> None:
        """Queues an encoded message."""

    def is_newer(self, actor: str, epoch: int) -> bool:
        """Whether this is a later life of the actor than the one that messages go to."""

    def follow(self, actor: str, epoch: int) -> None:
        """From now on messages go to this life of the actor."""


class ActorLoop(Generic[T]):
    """Drives one core over any kind of channel."""

    def __init__(
        self,
        core: Core[T],
        inbox: Source[T],
        post: Sink,
        stats: StatsReporter | None = None,
        progress: Progress | None = None,
        longest_sleep_ns: int | None = None,
    ) -> None:
        """With `longest_sleep_ns` the loop comes round at least that often, to show in `progress` that it lives."""
        self._core = core
        self._inbox = inbox
        self._post = post
        self._stats = stats
        self._progress = progress or Progress.private()
        self._longest_sleep_ns = longest_sleep_ns
        self._encoder = msgspec.msgpack.Encoder()

    def run(self) -> None:
        """Turns until the core has finished; asleep while there is neither a message nor a deadline."""
        first: T | None = None
        while True:
            deadline_ns = self.turn(now_ns(), first)
            if self._core.finished:
                return
            timeout_ns = self._longest_sleep_ns
            if deadline_ns is not None:
                left_ns = deadline_ns - now_ns()
                timeout_ns = left_ns if timeout_ns is None else min(left_ns, timeout_ns)
            first = None
            if timeout_ns is None or timeout_ns > 0:
                first = self._inbox.receive(timeout_ns)

    def turn(self, now: int, first: T | None = None) -> int | None:
        """One turn: every message that is there, one tick, everything out. Returns the next deadline."""
        core = self._core
        if not getattr(core, "waits_for_device", False):
            self._progress.stamp_turn(now, getattr(core, "has_worked", False))
        if first is not None:
            self._take(first, now)
        for message in self._inbox.drain():
            self._take(message, now)
        deadline_ns = core.tick(now)
        self._send()
        if self._stats is None:
            return deadline_ns
        stats, again_ns = self._stats.report(now)
        if stats is not None:
            self._post.send_bytes("launcher", self._encoder.encode(stats))
        if deadline_ns is None or again_ns is None:
            return again_ns if deadline_ns is None else deadline_ns
        return min(deadline_ns, again_ns)

    def _take(self, message: T, now: int) -> None:
        for actor, epoch in lives_in(message):
            if self._post.is_newer(actor, epoch):
                self._send()  # what the core has said so far was meant for the life before
                self._post.follow(actor, epoch)
        self._core.on_message(message, now)

    def _send(self) -> None:
        """Sends what the core left. A message for several actors in a row is encoded once."""
        previous: RingMessage | None = None
        data = b""
        for destination, message in self._core.outgoing:
            if message is not previous:
                data = self._encoder.encode(message)
                previous = message
            self._post.send_bytes(destination, data)
        self._core.outgoing.clear()


def run_actor(context: ActorContext, core: Core[Any], inbox_union: Any) -> int:
    """Binds the actor's inbox, says ActorReady and loops until the core has finished.

    Returns the exit status: 0, or 1 after an exception, which is logged and sent as ActorFailed.
    """
    try:
        address = context.run_dir.inbox(context.name, context.epoch)
        inbox: Inbox[Any] = Inbox.bind(address, inbox_union)
        post = Post(context.run_dir, context.peer_epochs)
        try:
            # What is there now stays: the garbage collector need not look at it in the middle of a step.
            gc.freeze()
            post.send("launcher", actor_ready(context))
            stats = StatsReporter(context.name, context.epoch, core)
            ActorLoop(
                core,
                context.faults.around(inbox),
                post,
                stats,
                context.progress,
                longest_sleep_ns(context.config.stall_limit_s),
            ).run()
        finally:
            inbox.close()
            post.close()
    except Exception as error:
        report_failure(context, error)
        return 1
    return 0


def actor_ready(context: ActorContext) -> ActorReady:
    """The message that says: the inbox is bound and the loop runs."""
    return ActorReady(actor=context.name, epoch=context.epoch, pid=os.getpid())


def report_failure(context: ActorContext, error: Exception, spends_budget: bool = True) -> None:
    """Logs why this actor is about to exit, and tells the launcher whether the actor itself is to blame."""
    details = "".join(traceback.format_exception(error))
    logger.error("the actor fails:\n%s", details.rstrip())
    summary = " ".join(str(error).split())
    post = Post(context.run_dir)
    post.send(
        "launcher",
        ActorFailed(
            actor=context.name,
            epoch=context.epoch,
            message=f"{type(error).__name__}: {summary}" if summary else type(error).__name__,
            details=details,
            spends_budget=spends_budget,
        ),
    )
    post.close()
