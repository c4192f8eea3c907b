"""How the launcher keeps its actors alive: who hangs is killed, who has died is started again, and all hear of it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from pillion.messages import control
from pillion.messages.base import RingMessage
from pillion.runtime.channels import Post
from pillion.runtime.child import Child
from pillion.runtime.clock import now_ns
from pillion.runtime.config import EngineConfig
from pillion.runtime.http_settings import is_gateway
from pillion.runtime.proc_files import is_stopped
from pillion.runtime.progress import Sign
from pillion.runtime.restart_budget import Budgets
from pillion.runtime.service_manager import ServiceManager
from pillion.runtime.status_board import StatusBoard
from pillion.runtime.supervision import Supervisor
from pillion.runtime.watchdog import Hang, Watchdog, look_interval_s

logger = logging.getLogger(__name__)

WORKER: Final = "gpu_worker"
SCHEDULER: Final = "scheduler"
KV_MANAGER: Final = "kv_manager"
DRAINING: Final = ("detokenizer", "scheduler")  # who is told of a drain, besides gateways
LAST_WORD_S: Final = 0.1  # between an actor's exit and the arrival of its ActorFailed
FAILURE_GRACE_S: Final = 1.0  # between an actor's word that it fails and its exit
REPLACE_DEADLINE_S: Final = 10.0  # a process that holds much device memory takes a while to end


class Recovery:
    """Acts on deaths and hangs while the daemon serves. `give_up` hears why it cannot."""

    def __init__(
        self,
        config: EngineConfig,
        board: StatusBoard,
        supervisor: Supervisor,
        post: Post,
        service: ServiceManager,
        give_up: Callable[[str | Child], None],
    ) -> None:
        self._config = config
        self._board = board
        self._supervisor = supervisor
        self._post = post
        self._service = service
        self._give_up = give_up
        self._watchdog = Watchdog(config.stall_limit_s, config.step_limit_s, is_stopped)
        self._budgets = Budgets(config.max_restarts, config.restart_period_s)
        self._crashes: dict[str, str] = {}  # by actor, of lives since the last one that was ready
        self._stalled_epoch: int | None = (
            None  # of the scheduler that had open requests and ran no step
        )
        self._drain: control.Drain | None = None
        self._told_state: control.EngineState | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_over(self) -> bool:
        """Whether the daemon ends anyway, so that nobody is to be replaced."""
        return self._board.state in ("stopping", "failed")

    # What is seen of the actors.

    def watch(self) -> None:
        """Looks for hangs, again and again. Who hangs is killed, and then it has died."""
        loop = asyncio.get_running_loop()
        loop.call_later(look_interval_s(self._config.stall_limit_s), self.watch)
        if self.is_over:
            return  # the end has limits of its own
        self._watchdog.begin_look(now_ns())
        for child in self._supervisor.children.values():
            if not child.alive or child.hang is not None:
                continue
            sign, starting = self._supervisor.sign_of(child), child.state == "starting"
            hang = self._watchdog.look(child.name, child.epoch, child.pid, sign, starting=starting)
            if hang is not None:
                self._kill_hung(child, hang)
        self._look_for_lost_work()

    def _look_for_lost_work(self) -> None:
        """All turn, requests are open, and yet no step is run: somebody's books are wrong.

        The scheduler begins again, and if its next life runs no step either, the KV manager.
        """
        children = self._supervisor.children
        scheduler, manager, worker = (children.get(n) for n in (SCHEDULER, KV_MANAGER, WORKER))
        if scheduler is None or manager is None or worker is None:
            return
        if any(not child.alive or child.hang is not None for child in (scheduler, manager)):
            return
        now, steps = now_ns(), self._board.steps_if_open(scheduler.epoch)
        waits = self._board.state != "ready" or self._supervisor.sign_of(worker).in_step
        # With no work that is due, every look is a sign of life.
        sign = Sign(now if waits or steps is None else -1 - steps, in_step=False)
        pid, lives = scheduler.pid, scheduler.epoch + manager.epoch
        if self._watchdog.look("the ring", lives, pid, sign, starting=False) is not None:
            in_vain = self._stalled_epoch == scheduler.epoch - 1 and not steps
            self._stalled_epoch = scheduler.epoch
            limit_s = self._config.stall_limit_s
            reason = f"requests are open and no step was run for stall_limit_s = {limit_s:g} s"
            self._kill_hung(manager if in_vain else scheduler, Hang(reason))

    def on_exit(self, child: Child, read_inbox: Callable[[], None]) -> None:
        """A child's process is gone. Its last word may still be in our inbox."""
        if self._board.state == "ready" and not self._supervisor.is_spare(child):
            self._board.state = "recovering"
        self._board.note_death(child)
        self.tell_state()
        self._spawn(self._on_death(child, read_inbox))

    def on_failing(self, child: Child) -> None:
        """An actor that has said that it fails is about to exit; one that does not is helped."""
        if self._board.state == "starting":
            self._give_up(child)
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(FAILURE_GRACE_S, self._supervisor.kill, [child])

    def on_ready(self, child: Child) -> None:
        """A life has begun: the others hear of it if it is not the first, and it hears what they know."""
        if child.epoch > 1:
            crash = self._crashes.pop(child.name, None)
            restarted = control.PeerRestarted(actor=child.name, epoch=child.epoch, crash=crash)
            self.send(
                restarted, *(name for name in self._supervisor.children if name != child.name)
            )
            if self._drain is not None and (child.name in DRAINING or is_gateway(child.name)):
                self.send(self._drain, child.name)
        self.tell_geometry()
        if is_gateway(child.name):
            self._told_state = None
        self.tell_state()

    # What the actors are told.

    def send(self, message: RingMessage, *destinations: str) -> None:
        """Sends to those of these actors that this daemon has."""
        for destination in destinations:
            if destination in self._supervisor.children:
                self._post.send(destination, message)

    def drain(self, deadline_ns: int) -> None:
        """Tells those concerned, and their next lives if need be."""
        self._drain = control.Drain(deadline_ns=deadline_ns)
        self.send(self._drain, *DRAINING, *self._gateways())

    def tell_state(self) -> None:
        """Gateways answer probes from memory, so they hear of every change, and so does the service manager."""
        state = control.EngineState(
            not_ready=self._board.not_ready(self._supervisor.children.values())
        )
        if state != self._told_state:
            self._told_state = state
            self.send(state, *self._gateways())
            self._service.status(state.not_ready or f"serving {self._board.model}")

    def _gateways(self) -> list[str]:
        return [name for name in self._supervisor.children if is_gateway(name)]

    def tell_geometry(self) -> None:
        """Whoever has not heard of it yet gets the sizes of the worker that lives now."""
        geometry = self._board.geometry
        if geometry is None or not self._supervisor.is_alive(WORKER, geometry.epoch):
            return
        for child in self._supervisor.children.values():
            if child.name != WORKER and child.geometry_epoch != geometry.epoch:
                child.geometry_epoch = geometry.epoch
                self.send(geometry, child.name)

    # What a death leads to.

    async def _on_death(self, child: Child, read_inbox: Callable[[], None]) -> None:
        read_inbox()
        if child.failure is None and child.process.returncode == 1:
            await asyncio.sleep(LAST_WORD_S)
            read_inbox()
        if self._board.state == "starting":
            self._give_up(child)  # what cannot start once would not start the next time
        elif not self.is_over:
            await self._replace(child)

    async def _replace(self, dead: Child) -> None:
        """Starts the next life of an actor, and of those that cannot outlive it, if the budget allows it."""
        if dead.taken_along:
            return
        if dead.crash is not None:
            self._crashes[dead.name] = dead.crash
        has_worked = self._supervisor.sign_of(dead).has_worked
        cause = self._budgets.spend(dead, has_worked, now_ns())
        if cause is not None:
            self._give_up(cause)
            return
        names = self._supervisor.with_dependents(dead.name)
        old = [self._supervisor.children[name] for name in names]
        for child in old:
            child.taken_along = True
        self._supervisor.kill(old)
        lost = await self._supervisor.wait_gone(old, REPLACE_DEADLINE_S)
        if lost:
            self._give_up(self._supervisor.give_up_on(lost, REPLACE_DEADLINE_S))
        elif not self.is_over:
            for name in names:
                self._restart(name)

    def _restart(self, name: str) -> None:
        try:
            child = self._supervisor.restart(name)
        except OSError as error:
            self._give_up(f"cannot start {name} again: {error}")
            return
        logger.info("%s is started again as pid %d, life %d", name, child.pid, child.epoch)
        self._post.follow(name, child.epoch)
        limit_s = self._config.start_timeout_s
        asyncio.get_running_loop().call_later(limit_s, self._on_restart_timeout, child)

    def _on_restart_timeout(self, child: Child) -> None:
        if child.alive and child.state == "starting" and not self.is_over:
            limit_s = self._config.start_timeout_s
            self._kill_hung(child, Hang(f"it was not ready after start_timeout_s = {limit_s:g} s"))

    def _kill_hung(self, child: Child, hang: Hang) -> None:
        child.hang = hang
        self._supervisor.kill([child])
        self._spawn(self._expect_end(child))

    async def _expect_end(self, child: Child) -> None:
        """Not even SIGKILL ends a process that waits in a driver, and then nobody can take its place."""
        lost = await self._supervisor.wait_gone([child], REPLACE_DEADLINE_S)
        if lost and not self.is_over:
            self._give_up(self._supervisor.give_up_on(lost, REPLACE_DEADLINE_S))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
