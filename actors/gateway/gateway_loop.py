"""The event loop that drives the gateway: its inbox, its sockets, its numbers."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, assert_never

from pillion.actors.gateway.app import make_app
from pillion.actors.gateway.gateway import Gateway
from pillion.actors.gateway.http_server import HttpServer
from pillion.messages import control
from pillion.messages.inboxes import GatewayInbox
from pillion.runtime.actor import actor_ready
from pillion.runtime.channels import Inbox, Post
from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.inherited_sockets import address_of
from pillion.runtime.process import ActorContext
from pillion.runtime.stats import STATS_INTERVAL_NS
from pillion.runtime.watchdog import longest_sleep_ns

_STOPPING = "the daemon is stopping"


class GatewayLoop:
    """One gateway in its process."""

    def __init__(self, context: ActorContext) -> None:
        self._context = context
        self._gateway = Gateway(context.config, context.run_dir, context.name, context.epoch)
        self._gateway.link.not_ready = "the daemon is starting"  # until the launcher says more
        self._server = HttpServer(make_app(self._gateway))
        self._loop = asyncio.get_running_loop()
        address = context.run_dir.inbox(context.name, context.epoch)
        inbox: Inbox[Any] = Inbox.bind(address, GatewayInbox)
        self._inbox = context.faults.around(inbox)
        self._post = Post(context.run_dir)
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._life_timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Serves until the launcher ends it. Raises what went wrong."""
        try:
            await self._listen()
            on_ring = self._guarded(self._on_ring)
            self._loop.add_reader(self._inbox.fileno(), on_ring)
            self._show_life()
            self._report()
            self._post.send("launcher", actor_ready(self._context))
            on_ring()  # the descriptor tells of changes only, and some may have come before it was watched
            await self._ended
            await self._server.close()
        finally:
            for timer in (self._timer, self._life_timer):
                if timer is not None:
                    timer.cancel()
            self._loop.remove_reader(self._inbox.fileno())
            self._gateway.link.close()
            self._inbox.close()
            self._post.close()

    async def _listen(self) -> None:
        served = [
            await self._server.listen(descriptor) for descriptor in self._context.listening_fds
        ]
        gauges = self._gateway.metrics.gauges
        for listening in served:
            kind = "http_uds" if listening.family == socket.AF_UNIX else "http"
            known = gauges.get(kind)
            gauges[kind] = f"{known} {address_of(listening)}" if known else address_of(listening)
        self._gateway.metrics.on_change = self._report_soon

    def _on_ring(self) -> None:
        for message in self._inbox.drain():
            self._on_message(message)

    def _on_message(self, message: GatewayInbox) -> None:
        link = self._gateway.link
        match message:
            case control.EngineGeometry():
                link.geometry = message
            case control.PeerRestarted():
                pass  # the connection to a text edge that has died tells of it, and is opened again
            case control.Drain():
                link.closed_because = _STOPPING
            case control.EngineState():
                link.not_ready = message.not_ready
            case control.EngineFailed():
                link.closed_because = message.message
            case control.Shutdown():
                link.closed_because = link.closed_because or _STOPPING
                if not self._ended.done():
                    self._ended.set_result(None)
            case _:
                assert_never(message)

    def _show_life(self) -> None:
        """Shows that this loop comes round, again and again."""
        self._context.progress.stamp_turn(now_ns())
        delay_s = longest_sleep_ns(self._context.config.stall_limit_s) / NS_PER_S
        self._life_timer = self._loop.call_later(delay_s, self._show_life)

    def _report_soon(self) -> None:
        """Something was counted: the launcher hears of it within a second."""
        if self._timer is None:
            self._timer = self._loop.call_later(STATS_INTERVAL_NS / NS_PER_S, self._report)

    def _report(self) -> None:
        self._timer = None
        stats, again_ns = self._gateway.stats.report(now_ns())
        if stats is not None:
            self._post.send("launcher", stats)
        elif again_ns is not None:
            self._report_soon()

    def _guarded(self, function: Callable[[], None]) -> Callable[[], None]:
        """An event loop logs an exception of a callback and goes on; here it ends the actor."""

        def guarded() -> None:
            try:
                function()
            except Exception as error:
                if not self._ended.done():
                    self._ended.set_exception(error)

        return guarded


async def run_gateway(context: ActorContext) -> None:
    """Runs the gateway of this process to its end."""
    await GatewayLoop(context).run()
