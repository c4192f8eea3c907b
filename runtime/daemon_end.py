"""The end of a daemon: what is open is finished or told, then every process goes."""

import asyncio
import logging
from typing import Final

from pillion.messages import control
from pillion.runtime.child import Child
from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.endings import Ending, Endings, Failure, Stop
from pillion.runtime.http_settings import is_gateway
from pillion.runtime.launch_report import LaunchReport
from pillion.runtime.recovery import Recovery
from pillion.runtime.service_manager import ServiceManager
from pillion.runtime.status_board import StatusBoard
from pillion.runtime.supervision import Supervisor

logger = logging.getLogger(__name__)

DRAIN_SLACK_S: Final = 1.0  # for the last chunks of requests that ran into the drain's deadline
SHUTDOWN_GRACE_S: Final = 2.0
STOP_NOW_GRACE_S: Final = 0.5
FAILURE_GRACE_S: Final = 1.0
KILL_DEADLINE_S: Final = 2.0
# What the end takes at the most behind the drain.
END_S: Final = DRAIN_SLACK_S + SHUTDOWN_GRACE_S + KILL_DEADLINE_S


class DaemonEnd:
    """Ends a daemon as one of its endings says. `drained` is set when no request is open any more."""

    def __init__(
        self,
        endings: Endings,
        board: StatusBoard,
        supervisor: Supervisor,
        recovery: Recovery,
        service: ServiceManager,
        report: LaunchReport,
    ) -> None:
        self.drained = asyncio.Event()
        self._endings = endings
        self._board = board
        self._supervisor = supervisor
        self._recovery = recovery
        self._service = service
        self._report = report

    async def drain(self, stop: Stop) -> Ending:
        """Lets what runs finish. Returns what ended the drain: this stop, a more urgent one, or a failure."""
        self._board.state = "draining"
        logger.info("%s: draining for at most %g s", stop.reason, stop.drain_s)
        status = f"{stop.reason}: draining for at most {stop.drain_s:g} s"
        self._service.stopping(status, stop.drain_s + END_S)
        deadline_ns = now_ns() + int(stop.drain_s * NS_PER_S)
        self._recovery.drain(deadline_ns)
        interruption = await self._endings.unless_one_comes(
            self.drained.wait(), stop.drain_s + DRAIN_SLACK_S
        )
        return interruption or stop

    async def stop(self, stop: Stop) -> int:
        """Ends everybody, in order after a drain. Returns the exit status."""
        in_order = self._board.state == "draining" and stop.drain_s > 0
        self._board.state = "stopping"
        logger.info("stopping: %s", stop.reason)
        self._service.stopping(f"stopping: {stop.reason}", END_S)
        self._report.failed(f"stopped before it was ready: {stop.reason}")
        if in_order:
            await self._endings.unless_one_comes(self._shut_down_in_order(), SHUTDOWN_GRACE_S)
        else:
            stopped = control.EngineFailed(message="the daemon is stopping", code="unavailable")
            await self._end_requests(stopped, None, STOP_NOW_GRACE_S)
        lost = await self._kill_all()
        if lost:
            logger.error("stopped, but %s", lost)
            return 1
        logger.info("stopped")
        return 0

    async def fail(self, failure: Failure) -> int:
        """Ends everybody and says why. Returns the exit status."""
        self._board.state = "failed"
        self._board.failure = failure.message
        self._service.stopping(f"failed: {failure.message}", END_S)
        culprit = failure.cause if isinstance(failure.cause, Child) else None
        failed = control.EngineFailed(message=f"the engine failed: {failure.message}")
        await self._end_requests(failed, culprit, FAILURE_GRACE_S)
        lost = await self._kill_all()
        self._board.failure = failure.message
        if lost:
            logger.error("%s", lost)
        # Nobody is left who could write to the log after this line.
        logger.error("failed: %s", failure.message)
        self._report.failed(failure.message)
        return 1

    async def _shut_down_in_order(self) -> None:
        for child in self._supervisor.stopping_order():
            self._recovery.send(control.Shutdown(), child.name)
            await self._supervisor.wait_gone([child], SHUTDOWN_GRACE_S)

    async def _end_requests(
        self, reason: control.EngineFailed, culprit: Child | None, grace_s: float
    ) -> None:
        """Every open request ends with an error now; only who tells the clients, and who fails, may go on."""
        spared: list[Child] = []
        others: list[Child] = []
        for child in self._supervisor.stopping_order():
            at_clients = child.name == "detokenizer" or is_gateway(child.name)
            tells_clients = at_clients and child.state == "running"
            if tells_clients:
                self._recovery.send(reason, child.name)
                self._recovery.send(control.Shutdown(), child.name)
            (spared if tells_clients or child is culprit else others).append(child)
        self._supervisor.kill(others)
        await self._supervisor.wait_gone(spared, grace_s)

    async def _kill_all(self) -> str:
        """Kills who is left. Returns "" or a line that says which processes not even SIGKILL has ended."""
        living = self._supervisor.stopping_order()
        self._supervisor.kill(living)
        lost = await self._supervisor.wait_gone(living, KILL_DEADLINE_S)
        return self._supervisor.give_up_on(lost, KILL_DEADLINE_S) if lost else ""
