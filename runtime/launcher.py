"""The launcher: starts the actors, answers for the daemon, and ends it in order when anything ends it."""

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from typing import Any, Final, assert_never

from pillion.messages import control, inboxes
from pillion.runtime.channels import Inbox, Post
from pillion.runtime.child import Child
from pillion.runtime.clock import NS_PER_MS, now_ns
from pillion.runtime.config import EngineConfig
from pillion.runtime.control_socket import ControlServer
from pillion.runtime.daemon_end import END_S, DaemonEnd
from pillion.runtime.endings import Endings, Failure, Stop
from pillion.runtime.errors import PillionError
from pillion.runtime.http_sockets import HttpSockets
from pillion.runtime.launch_report import LaunchReport
from pillion.runtime.orphans import waiting_for_orphans
from pillion.runtime.paths import RunDir
from pillion.runtime.recovery import Recovery
from pillion.runtime.service_manager import ServiceManager
from pillion.runtime.status_board import StatusBoard
from pillion.runtime.supervision import ActorSpec, Supervisor

logger = logging.getLogger(__name__)

NAME: Final = "launcher"


class Launcher:
    """One life of a daemon. The caller holds the run directory's lock."""

    def __init__(
        self,
        config: EngineConfig,
        run_dir: RunDir,
        specs: Sequence[ActorSpec],
        lock_fd: int,
        report: LaunchReport,
        service: ServiceManager,
        http: HttpSockets,
    ) -> None:
        self._config = config
        self._http = http
        self._report = report
        self._service = service
        self._run_dir = run_dir
        self._board = StatusBoard(config)
        self._supervisor = Supervisor(specs, run_dir, lock_fd, self._on_exit)
        self._control = ControlServer(self._answer)
        self._post = Post(run_dir)
        self._inbox: Inbox[Any] | None = None
        self._endings = Endings()
        self._recovery = Recovery(
            config,
            self._board,
            self._supervisor,
            self._post,
            service,
            lambda cause: self._endings.put(Failure(cause)),
        )
        self._end = DaemonEnd(
            self._endings, self._board, self._supervisor, self._recovery, service, report
        )

    async def run(self, lifetime_fd: int | None = None) -> int:
        """Runs the daemon to its end. Returns the exit status: 0 if it was stopped, 1 if it failed.

        With `lifetime_fd`, a pipe's reading end, the daemon stops at once when the other end is closed.
        """
        try:
            with waiting_for_orphans(self._supervisor.pids):
                await self._open(lifetime_fd)
                return await self._run_to_end()
        finally:
            self._control.close()
            self._supervisor.close()
            self._post.close()
            if self._inbox is not None:
                asyncio.get_running_loop().remove_reader(self._inbox.fileno())
                self._inbox.close()

    async def _run_to_end(self) -> int:
        ending = await self._endings.next()
        served = self._board.state in ("ready", "recovering")
        if isinstance(ending, Stop) and served and ending.drain_s > 0:
            ending = await self._end.drain(ending)
        self._http.close()
        if isinstance(ending, Failure):
            return await self._end.fail(ending)
        return await self._end.stop(ending)

    async def _open(self, lifetime_fd: int | None) -> None:
        """Binds the sockets first, so that the status answers while the actors still load."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_error)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)
        if lifetime_fd is not None:
            loop.add_reader(lifetime_fd, self._on_parent_gone, loop, lifetime_fd)
        await self._control.bind(self._run_dir.control_socket)
        self._inbox = Inbox.bind(self._run_dir.inbox(NAME), inboxes.LauncherInbox)
        loop.add_reader(self._inbox.fileno(), self._read_inbox)
        loop.call_later(self._config.start_timeout_s, self._on_start_timeout)
        self._recovery.watch()
        self._service.starting(
            f"starting {self._config.model}", self._config.start_timeout_s + END_S
        )
        self._show_life()
        logger.info("starting %s in %s", self._config.model, self._run_dir.root)
        try:
            self._supervisor.start()
        except OSError as error:
            self._endings.put(Failure(f"cannot start an actor: {error}"))

    def _show_life(self) -> None:
        """Shows the service manager that this loop comes round, as long as there is a daemon to keep."""
        interval_s = self._service.watchdog_interval_s
        if interval_s is not None and self._board.state != "failed":
            self._service.alive()
            asyncio.get_running_loop().call_later(interval_s, self._show_life)

    # What ends a daemon.

    def _on_signal(self, number: signal.Signals) -> None:
        drain_s = 0.0 if self._endings.any_came else self._config.drain_s
        self._endings.put(Stop(drain_s, number.name))

    def _on_parent_gone(self, loop: asyncio.AbstractEventLoop, lifetime_fd: int) -> None:
        if os.read(lifetime_fd, 1) == b"":
            loop.remove_reader(lifetime_fd)
            self._endings.put(Stop(0.0, "the process that started it has ended"))

    def _on_start_timeout(self) -> None:
        if self._board.state == "starting":
            missing = [c.name for c in self._supervisor.children.values() if c.state != "running"]
            waiting_for = ", ".join(missing) or "the worker's EngineGeometry"
            limit = self._config.start_timeout_s
            self._endings.put(
                Failure(f"not ready after start_timeout_s = {limit:g} s: waiting for {waiting_for}")
            )

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        logger.error("the launcher fails: %s", context["message"], exc_info=error)
        reason = f"{type(error).__name__}: {error}" if error else context["message"]
        self._endings.put(Failure(f"{NAME} (pid {os.getpid()}) failed: {reason}"))

    def _on_exit(self, child: Child) -> None:
        ending = self._recovery.is_over
        level = logging.INFO if ending or child.state == "exited" else logging.WARNING
        logger.log(level, "%s", child.how_it_ended())
        if not ending:
            self._recovery.on_exit(child, self._read_inbox)

    # What the actors say.

    def _read_inbox(self) -> None:
        if self._inbox is not None:
            for message in self._inbox.drain():
                self._on_message(message)

    def _on_message(self, message: inboxes.LauncherInbox) -> None:
        match message:
            case control.ActorReady():
                self._on_actor_ready(message)
            case control.ActorFailed():
                self._on_actor_failed(message)
            case control.ActorStats():
                self._board.note_stats(message)
            case control.StartPhase():
                self._board.note_phase(message)
                logger.info("%s: %s %.0f ms", message.actor, message.phase, message.duration_ms)
            case control.EngineGeometry():
                if self._supervisor.is_alive("gpu_worker", message.epoch):
                    self._board.geometry = message
                    self._recovery.tell_geometry()
                    self._check_ready()
            case control.Drained():
                # Only the text edge knows every open request.
                if (
                    self._supervisor.is_alive("detokenizer", message.epoch)
                    and message.actor == "detokenizer"
                ):
                    self._end.drained.set()
            case _:
                assert_never(message)

    def _on_actor_failed(self, message: control.ActorFailed) -> None:
        child = self._child(message.actor)
        if child.epoch == message.epoch and child.failure is None:
            child.failure = message
            self._recovery.on_failing(child)

    def _on_actor_ready(self, message: control.ActorReady) -> None:
        if not self._supervisor.is_alive(message.actor, message.epoch):
            return
        child = self._child(message.actor)
        child.state = "running"
        child.was_running = True
        duration_ms = (now_ns() - child.started_ns) / NS_PER_MS
        self._board.note_phase(
            control.StartPhase(
                actor=child.name, epoch=child.epoch, phase="ready", duration_ms=duration_ms
            )
        )
        logger.info("%s (pid %d) is ready after %.0f ms", child.name, child.pid, duration_ms)
        self._recovery.on_ready(child)
        self._check_ready()

    def _check_ready(self) -> None:
        """Ready: all live, and the worker has run a step in this life, as it does before it tells its sizes."""
        geometry, children = self._board.geometry, self._supervisor.children
        if (
            self._board.state in ("starting", "recovering")
            and geometry is not None
            and self._supervisor.is_alive("gpu_worker", geometry.epoch)
            and all(map(self._serves, children.values()))
        ):
            first = self._board.state == "starting"
            self._board.note_ready()
            if first:
                logger.info("ready after %.2f s", self._board.ready_after_s)
                self._report.ready()
                self._service.ready()
            else:
                logger.info("ready again")
            self._recovery.tell_state()

    def _serves(self, child: Child) -> bool:
        """Whether it runs, or is not missed. A first start waits for all."""
        can_wait = self._board.state == "recovering" and self._supervisor.is_spare(child)
        return child.state == "running" or can_wait

    def _child(self, actor: str) -> Child:
        child = self._supervisor.children.get(actor)
        if child is None:
            raise PillionError(
                f"a message came from {actor!r}, which is not an actor of this daemon"
            )
        return child

    # What the command line asks.

    def _answer(self, request: inboxes.ControlRequest) -> inboxes.ControlReply:
        match request:
            case control.StatusRequest():
                children = self._supervisor.children
                if request.stats is not None and request.stats.actor in children:
                    self._board.note_early_stats(request.stats)
                return self._board.status(children.values(), self._supervisor.sign_of)
            case control.ProbeRequest():
                return self._board.probe(self._supervisor.children.values())
            case control.StopRequest():
                drain_s = self._config.drain_s if request.drain_s is None else request.drain_s
                if not self._endings.any_came or drain_s <= 0:
                    self._endings.put(Stop(drain_s, "asked to stop"))
                return control.StopAccepted(pid=os.getpid())
            case _:
                assert_never(request)
