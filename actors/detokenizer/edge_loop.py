"""The event loop that drives the text edge: its inbox, its clients, its threads."""

import asyncio
import gc
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

import pillion
from pillion.actors.detokenizer.client_sessions import MAX_SESSIONS
from pillion.actors.detokenizer.faults import client_server
from pillion.actors.detokenizer.grammars.calls import GrammarReply
from pillion.actors.detokenizer.grammars.link import GrammarLink
from pillion.actors.detokenizer.job_threads import JobThreads, return_free_memory
from pillion.actors.detokenizer.prompt_jobs import PromptJob
from pillion.actors.detokenizer.text_edge import TextEdge
from pillion.actors.detokenizer.text_model import TextModel, load_text_model
from pillion.messages.control import StartPhase
from pillion.messages.inboxes import DetokenizerInbox, lives_in
from pillion.runtime.actor import actor_ready
from pillion.runtime.channels import Inbox, Post
from pillion.runtime.clock import NS_PER_MS, NS_PER_S, now_ns
from pillion.runtime.config import EngineConfig
from pillion.runtime.open_files import open_files_limit
from pillion.runtime.process import ActorContext
from pillion.runtime.stats import StatsReporter
from pillion.runtime.watchdog import longest_sleep_ns

if TYPE_CHECKING:
    from pillion.actors.detokenizer.span_exporter import RequestTracer

logger = logging.getLogger(__name__)

# What the text edge has open besides clients and gateways, those that it turns away included.
OTHER_FILES: Final = 64


class EdgeLoop:
    """One text edge in its process."""

    def __init__(self, context: ActorContext) -> None:
        self._context = context
        self._edge = TextEdge(
            context.epoch,
            context.config,
            pillion.__version__,
            peer_epochs=context.peer_epochs,
            max_sessions=_max_sessions(context.config),
        )
        self._loop = asyncio.get_running_loop()
        address = context.run_dir.inbox(context.name, context.epoch)
        inbox: Inbox[Any] = Inbox.bind(address, DetokenizerInbox)
        self._inbox = context.faults.around(inbox)
        self._post = Post(context.run_dir, context.peer_epochs)
        self._stats = StatsReporter(context.name, context.epoch, self._edge)
        self._server = client_server(context, self._edge, self._wake)
        self._threads = JobThreads(self._loop, self._guarded(self._on_job_done))
        self._grammars = GrammarLink(
            self._loop,
            self._edge.vocabulary,
            self._guarded(self._on_grammar_replies),
            self._guarded(self._on_grammar_process_lost),
        )
        self._tracer = _tracer(context.config)
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._turn_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._longest_sleep_ns = longest_sleep_ns(context.config.stall_limit_s)

    async def run(self) -> None:
        """Runs until the edge has finished. Raises what went wrong in any of its parts."""
        await self._server.listen(self._context.run_dir.client_socket)
        on_ring = self._guarded(self._on_ring)
        self._loop.add_reader(self._inbox.fileno(), on_ring)
        self._post.send("launcher", actor_ready(self._context))
        on_ring()  # the descriptor tells of changes only, and some may have come before it was watched
        self._load_model()
        try:
            await self._ended
        finally:
            # If the edge has failed, its clients find their connections closed and go on at its next life.
            self._loop.remove_reader(self._inbox.fileno())
            self._grammars.close()
            await self._server.close()
            self._inbox.close()
            self._post.close()
            if self._tracer is not None:
                self._tracer.close()

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """An event loop logs an exception of a callback and goes on; here it ends the actor."""

        def guarded(*args: Any) -> None:
            try:
                function(*args)
            except Exception as error:
                if not self._ended.done():
                    self._ended.set_exception(error)

        return guarded

    def _load_model(self) -> None:
        started_ns = now_ns()
        loading: Future[TextModel] = Future()

        def load() -> None:
            try:
                loading.set_result(load_text_model(self._context.config))
            except Exception as error:
                loading.set_exception(error)
            return_free_memory()

        def loaded() -> None:
            self._edge.on_model(loading.result())
            gc.freeze()  # what is there now stays, so the collector need not look at it again
            duration_ms = (now_ns() - started_ns) / NS_PER_MS
            phase = StartPhase(
                actor=self._context.name,
                epoch=self._context.epoch,
                phase="tokenizer",
                duration_ms=duration_ms,
            )
            self._post.send("launcher", phase)
            self._turn()

        guarded = self._guarded(loaded)
        loading.add_done_callback(lambda _: self._loop.call_soon_threadsafe(guarded))
        threading.Thread(target=load, name="tokenizer", daemon=True).start()

    def _on_ring(self) -> None:
        now = now_ns()
        for message in self._inbox.drain():
            for actor, epoch in lives_in(message):
                if self._post.is_newer(actor, epoch):
                    self._send()  # what the edge has said so far was meant for the life before
                    self._post.follow(actor, epoch)
            self._edge.on_message(message, now)
        self._turn()

    def _on_job_done(self, job: PromptJob) -> None:
        self._edge.on_job_done(job)
        self._wake()

    def _on_grammar_replies(self, replies: list[GrammarReply]) -> None:
        self._edge.on_grammar_replies(replies, now_ns())
        self._wake()

    def _on_grammar_process_lost(self) -> None:
        self._edge.on_grammar_process_lost(now_ns())
        self._wake()

    def _wake(self) -> None:
        """Asks for a turn after everything that this turn of the loop brings."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._guarded(self._turn))

    def _turn(self) -> None:
        edge = self._edge
        self._turn_is_due = False
        now = now_ns()
        self._context.progress.stamp_turn(now)
        deadline_ns = edge.tick(now)
        self._send()
        self._server.send(edge.sessions.replies)
        edge.sessions.replies.clear()
        self._server.hang_up(edge.sessions.hang_ups)
        edge.sessions.hang_ups.clear()
        for job in edge.jobs:
            self._threads.submit(job)
        edge.jobs.clear()
        if edge.grammars.is_stuck(now):
            self._grammars.kill()
        if edge.grammars.calls:
            self._grammars.send(list(edge.grammars.calls))
            edge.grammars.calls.clear()
        if self._tracer is not None:
            self._tracer.export(edge.traces, now)
        stats, again_ns = self._stats.report(now)
        if stats is not None:
            self._post.send("launcher", stats)
        if again_ns is not None:
            deadline_ns = again_ns if deadline_ns is None else min(deadline_ns, again_ns)
        self._set_timer(deadline_ns, now)
        if edge.finished and not self._ended.done():
            self._ended.set_result(None)

    def _send(self) -> None:
        for destination, message in self._edge.outgoing:
            self._post.send(destination, message)
        self._edge.outgoing.clear()

    def _set_timer(self, deadline_ns: int | None, now: int) -> None:
        """The next turn: at the deadline, and soon enough to show that this loop lives."""
        if self._timer is not None:
            self._timer.cancel()
        delay_ns = self._longest_sleep_ns
        if deadline_ns is not None:
            delay_ns = min(max(deadline_ns - now, 0), delay_ns)
        self._timer = self._loop.call_later(delay_ns / NS_PER_S, self._wake)


def _max_sessions(config: EngineConfig) -> int:
    return min(MAX_SESSIONS, open_files_limit() - OTHER_FILES - config.http_gateways)


def _tracer(config: EngineConfig) -> "RequestTracer | None":
    if config.otlp_endpoint is None:
        return None
    # Nobody else is to pay for what it imports.
    from pillion.actors.detokenizer.span_exporter import RequestTracer, otlp_exporter

    model = config.served_model_name or config.model
    return RequestTracer(otlp_exporter(config.otlp_endpoint), model)


async def run_edge(context: ActorContext) -> None:
    """Runs the text edge of this process to its end."""
    await EdgeLoop(context).run()
