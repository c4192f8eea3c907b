"""What the launcher does about deaths and hangs, with children that are real and small."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable

import pytest

from pillion.messages.control import ActorFailed
from pillion.runtime import recovery
from pillion.runtime.channels import Post
from pillion.runtime.child import Child
from pillion.runtime.config import EngineConfig
from pillion.runtime.paths import DaemonLock, RunDir
from pillion.runtime.recovery import Recovery
from pillion.runtime.service_manager import ServiceManager
from pillion.runtime.status_board import StatusBoard
from pillion.runtime.supervision import ActorSpec, Supervisor

SLEEPER = (sys.executable, "-c", "import signal; signal.pause()")


class Rig:
    """A supervisor whose recovery is told of deaths, as the launcher tells it."""

    def __init__(self, run_dir: RunDir, lock: DaemonLock, specs: list[ActorSpec]) -> None:
        config = EngineConfig(model="fake", stall_limit_s=0.2, max_restarts=1)
        run_dir.config.write_bytes(config.to_json())
        self.board = StatusBoard(config)
        self.board.state = "ready"
        self.given_up: list[str | Child] = []
        self._post = Post(run_dir)
        self.supervisor = Supervisor(specs, run_dir, lock.descriptor, self._on_exit)
        self.recovery = Recovery(
            config,
            self.board,
            self.supervisor,
            self._post,
            ServiceManager(),
            self.given_up.append,
        )
        self.supervisor.start()

    def _on_exit(self, child: Child) -> None:
        if not self.recovery.is_over:
            self.recovery.on_exit(child, lambda: None)

    @property
    def epochs(self) -> list[int]:
        return [child.epoch for child in self.supervisor.children.values()]

    async def wait(self, what: str, holds: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(10):
                while not holds():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pytest.fail(f"waited in vain until {what}")

    async def close(self) -> None:
        self.board.state = "stopping"
        self.supervisor.kill(self.supervisor.stopping_order())
        await self.supervisor.wait_gone(self.supervisor.children.values(), 5)
        self.supervisor.close()
        self._post.close()


@pytest.fixture
async def rig(run_dir: RunDir) -> AsyncIterator[Rig]:
    lock = DaemonLock.acquire(run_dir)
    specs = [
        ActorSpec("a", SLEEPER),
        ActorSpec("b", SLEEPER, takes_along=("a",)),
        ActorSpec("c", SLEEPER, takes_along=("b",)),
        ActorSpec("d", SLEEPER),
    ]
    rig = Rig(run_dir, lock, specs)
    yield rig
    await rig.close()
    lock.release()


async def test_who_cannot_outlive_an_actor_begins_again_with_it(rig: Rig) -> None:
    rig.supervisor.kill([rig.supervisor.children["b"]])
    await rig.wait("a and b live again", lambda: rig.epochs == [2, 2, 1, 1])
    assert rig.board.state == "recovering"
    rig.supervisor.kill([rig.supervisor.children["c"]])
    await rig.wait("a, b and c live again", lambda: rig.epochs == [3, 3, 2, 1])
    assert rig.given_up == []  # only b and c have died of themselves, each once


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_death_that_a_request_has_caused_has_a_budget_of_its_own(
    rig: Rig, crashes: bool
) -> None:
    for life in range(1, 5):
        child = rig.supervisor.children["d"]
        child.was_running = True
        if crashes:
            os.kill(child.pid, signal.SIGBUS)
        else:
            child.failure = ActorFailed(
                actor="d", epoch=life, message="DeviceLost", details="", spends_budget=False
            )
            rig.supervisor.kill([child])
        await rig.wait("d lives again", lambda life=life: rig.epochs[3] == life + 1)
    assert rig.given_up == []


async def test_a_process_that_nothing_ends_is_lost_and_the_daemon_gives_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "REPLACE_DEADLINE_S", 0.2)
    child = rig.supervisor.children["d"]
    os.kill(child.pid, signal.SIGSTOP)
    with monkeypatch.context() as driver_that_hangs:
        driver_that_hangs.setattr(os, "killpg", lambda group, number: None)
        rig.recovery.watch()
        await rig.wait("it has given up", lambda: rig.given_up != [])
    assert rig.given_up == [
        f"SIGKILL has not ended d (pid {child.pid}) within 0.2 s; its device may be lost"
    ]
    status = rig.board.status(rig.supervisor.children.values(), rig.supervisor.sign_of)
    assert status.actors[4].state == "lost"
    assert rig.epochs == [1, 1, 1, 1]
