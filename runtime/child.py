"""One life of an actor, as the launcher sees it: its process, and how it ended."""

import asyncio
import contextlib
import os
import signal
import subprocess
from typing import Final, Literal

from pillion.messages.control import ActorFailed
from pillion.runtime.clock import now_ns
from pillion.runtime.watchdog import Hang

# What a process brings on itself; SIGKILL comes from others.
CRASH_SIGNALS: Final = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
)

ChildState = Literal["starting", "running", "exited", "failed", "lost"]


class Child:
    """One life of an actor."""

    def __init__(self, name: str, epoch: int, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.epoch = epoch
        self.pid = process.pid
        self.started_ns = now_ns()
        self.state: ChildState = "starting"
        self.failure: ActorFailed | None = None
        self.was_running = False
        self.taken_along = False  # its next life begins with that of another one
        self.hang: Hang | None = None  # why it was killed
        self.geometry_epoch = 0  # of the EngineGeometry that it was told last
        self.gone = asyncio.Event()
        self.process = process
        self.pidfd = os.pidfd_open(process.pid)

    @property
    def ending_kind(self) -> str:
        """How it ended, in a word for counting."""
        if self.hang is not None:
            return "hung"
        if self.failure is not None:
            return "failed"
        status = self.process.returncode
        return "killed" if status is not None and status < 0 else "exited"

    @property
    def crash(self) -> str | None:
        """How it ended, if it served and what it was doing may be to blame."""
        if self.hang is not None:
            is_crash = self.hang.is_own
        else:
            status = self.process.returncode
            is_crash = status is not None and -status in CRASH_SIGNALS
        # Who has told of its end has told of what it was doing.
        is_crash = is_crash and self.was_running and self.failure is None
        return self.how_it_ended() if is_crash else None

    @property
    def is_blameless(self) -> bool:
        """Whether it served and then ended for a reason that may not be its own."""
        if self.failure is not None and not self.failure.spends_budget:
            return self.was_running
        return self.crash is not None

    @property
    def ended_by_itself(self) -> bool:
        """Whether nobody else has ended it."""
        if self.hang is not None:
            return self.hang.is_own
        return self.process.returncode != -signal.SIGKILL or self.failure is not None

    @property
    def alive(self) -> bool:
        """Whether the process has not been seen to end."""
        return not self.gone.is_set()

    def how_it_ended(self) -> str:
        """Actor, pid, signal or exit code, and what the actor itself said, in one line."""
        exit_text = self._exit()
        if self.hang is not None:
            return f"{self.name} (pid {self.pid}) hung: {self.hang.reason}"
        if self.failure is None:
            return f"{self.name} (pid {self.pid}) {exit_text}"
        if self.process.returncode == -signal.SIGKILL:
            exit_text = "failed"  # it had given its reason, and then we ended it
        return f"{self.name} (pid {self.pid}) {exit_text}: {self.failure.message}"

    def _exit(self) -> str:
        status = self.process.returncode
        if self.alive:
            return "fails"
        if status is None:
            return "ended, and its exit status cannot be read"
        if status >= 0:
            return f"exited with code {status}"
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"


def kill_group(child: Child) -> None:
    """Kills a child that has not been waited for, and whatever it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
