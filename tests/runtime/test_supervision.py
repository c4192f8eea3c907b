"""The child table: ends of children as one line, and children that nothing can end."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from pillion.messages.control import ActorFailed
from pillion.runtime.child import Child
from pillion.runtime.config import EngineConfig
from pillion.runtime.paths import DaemonLock, RunDir
from pillion.runtime.supervision import ACTORS, ActorSpec, Supervisor
from pillion.runtime.watchdog import Hang

SLEEPER = "import signal; signal.pause()"


@pytest.fixture
def lock(run_dir: RunDir) -> Iterator[DaemonLock]:
    run_dir.config.write_bytes(EngineConfig(model="fake").to_json())
    lock = DaemonLock.acquire(run_dir)
    yield lock
    lock.release()


def spec(name: str, script: str) -> ActorSpec:
    return ActorSpec(name, (sys.executable, "-c", script))


def test_the_table_names_every_actor() -> None:
    assert [actor.name for actor in ACTORS] == [
        "kv_manager",
        "scheduler",
        "detokenizer",
        "gpu_worker",
    ]
    assert ACTORS[0].command == (sys.executable, "-P", "-m", "pillion.actors.kv_manager.process")


@pytest.mark.parametrize(
    ("script", "state", "ending"),
    [
        ("", "exited", "exited with code 0"),
        ("raise SystemExit(5)", "failed", "exited with code 5"),
        ("import os; os.kill(os.getpid(), 11)", "failed", "was killed by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 40)", "failed", "was killed by signal 40"),
    ],
)
async def test_how_a_child_ended(
    run_dir: RunDir, lock: DaemonLock, script: str, state: str, ending: str
) -> None:
    ended: list[Child] = []
    supervisor = Supervisor([spec("a", script)], run_dir, lock.descriptor, ended.append)
    supervisor.start()
    child = supervisor.children["a"]
    assert child.how_it_ended() == f"a (pid {child.pid}) fails"
    assert await supervisor.wait_gone([child], 10) == []
    assert ended == [child]
    assert child.state == state
    assert child.how_it_ended() == f"a (pid {child.pid}) {ending}"
    child.failure = ActorFailed(actor="a", epoch=1, message="ValueError: x", details="")
    assert child.how_it_ended() == f"a (pid {child.pid}) {ending}: ValueError: x"
    supervisor.close()


@pytest.mark.parametrize(
    ("script", "is_crash", "by_itself"),
    [
        ("import os; os.kill(os.getpid(), 11)", True, True),
        ("import os; os.abort()", True, True),
        ("import os; os.kill(os.getpid(), 9)", False, False),
        ("raise SystemExit(1)", False, True),
    ],
)
async def test_only_a_crash_of_its_own_may_be_the_doing_of_what_it_ran(
    run_dir: RunDir, lock: DaemonLock, script: str, is_crash: bool, by_itself: bool
) -> None:
    supervisor = Supervisor([spec("a", script)], run_dir, lock.descriptor, lambda child: None)
    supervisor.start()
    child = supervisor.children["a"]
    assert await supervisor.wait_gone([child], 10) == []
    assert child.crash is None, "it never served"
    child.was_running = True
    assert child.crash == (child.how_it_ended() if is_crash else None)
    assert child.is_blameless == is_crash
    assert child.ended_by_itself == by_itself
    child.hang = Hang("it is stopped")
    assert (child.crash, child.ended_by_itself) == (None, False)
    child.hang = Hang("its step has made no progress", is_own=True)
    assert child.crash == f"a (pid {child.pid}) hung: its step has made no progress"
    child.failure = ActorFailed(actor="a", epoch=1, message="DeviceLost", details="")
    assert child.crash is None, "it has told of its end itself"
    supervisor.close()


async def test_children_stop_in_reverse_order_and_die_when_killed(
    run_dir: RunDir, lock: DaemonLock
) -> None:
    specs = [spec(name, SLEEPER) for name in "abc"]
    supervisor = Supervisor(specs, run_dir, lock.descriptor, lambda child: None)
    supervisor.start()
    assert [child.name for child in supervisor.stopping_order()] == ["c", "b", "a"]
    supervisor.kill([supervisor.children["b"]])
    await supervisor.wait_gone([supervisor.children["b"]], 5)
    assert [child.name for child in supervisor.stopping_order()] == ["c", "a"]
    supervisor.kill(supervisor.stopping_order())
    assert await supervisor.wait_gone(supervisor.children.values(), 5) == []
    supervisor.close()


async def test_waiting_for_a_child_that_nothing_ends_has_a_deadline(
    run_dir: RunDir, lock: DaemonLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor([spec("a", SLEEPER)], run_dir, lock.descriptor, lambda child: None)
    supervisor.start()
    child = supervisor.children["a"]
    with monkeypatch.context() as driver_that_hangs:
        driver_that_hangs.setattr(os, "killpg", lambda group, number: None)
        supervisor.kill([child])
        async with asyncio.timeout(2):
            assert await supervisor.wait_gone([child], 0.1) == [child]
    supervisor.kill([child])
    assert await supervisor.wait_gone([child], 5) == []
    supervisor.close()


async def test_an_exit_status_that_is_withheld_does_not_hold_up_the_supervisor(
    run_dir: RunDir, lock: DaemonLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is traced by a stopped debugger is dead, and yet it cannot be waited for."""
    supervisor = Supervisor([spec("a", SLEEPER)], run_dir, lock.descriptor, lambda child: None)
    supervisor.start()
    child = supervisor.children["a"]
    with monkeypatch.context() as debugger:
        debugger.setattr(child.process, "poll", lambda: None)
        child.process.send_signal(signal.SIGKILL)
        assert await supervisor.wait_gone([child], 5) == []
        assert child.how_it_ended().endswith("ended, and its exit status cannot be read")
    assert child.process.wait(5) == -signal.SIGKILL
    supervisor.close()


async def test_closing_ends_whoever_lives(run_dir: RunDir, lock: DaemonLock) -> None:
    script = "from pillion.runtime.process import enter; enter('a'); import signal; signal.pause()"
    supervisor = Supervisor([spec("a", script)], run_dir, lock.descriptor, lambda child: None)
    supervisor.start()
    child = supervisor.children["a"]
    supervisor.close()
    assert await supervisor.wait_gone([child], 10) == []


@pytest.mark.parametrize("ends", ["by itself", "when killed"])
async def test_what_a_child_has_started_ends_with_it(
    run_dir: RunDir, lock: DaemonLock, ends: str
) -> None:
    told = run_dir.root / "pid"
    script = (
        "import pathlib, signal, subprocess\n"
        f"pathlib.Path({str(told)!r}).write_text(str(subprocess.Popen(['sleep', '60']).pid))\n"
        + ("signal.pause()" if ends == "when killed" else "")
    )
    supervisor = Supervisor([spec("a", script)], run_dir, lock.descriptor, lambda child: None)
    supervisor.start()
    child = supervisor.children["a"]
    if ends == "when killed":
        await asyncio.to_thread(
            wait_until, "it has a child", 10, lambda: told.exists() and told.read_text() != ""
        )
        supervisor.kill([child])
    assert await supervisor.wait_gone([child], 10) == []
    state = Path(f"/proc/{told.read_text()}/stat")
    await asyncio.to_thread(
        wait_until,
        "what it has started has ended",
        5,
        lambda: not state.exists() or state.read_text().split(") ")[1][0] == "Z",
    )
    supervisor.close()


async def test_a_command_that_does_not_exist_raises(run_dir: RunDir, lock: DaemonLock) -> None:
    missing = ActorSpec("a", ("/nonexistent/python",))
    supervisor = Supervisor([missing], run_dir, lock.descriptor, lambda child: None)
    with pytest.raises(OSError, match="nonexistent"):
        supervisor.start()
    supervisor.close()


async def test_an_actors_environment_yields_to_the_launchers(
    run_dir: RunDir, lock: DaemonLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OURS", "launcher")
    script = (
        "import os; os._exit(10 * (os.environ['OURS'] == 'launcher') + len(os.environ['MORE']))"
    )
    actor = ActorSpec(
        "a",
        (sys.executable, "-c", script),
        environment=(("OURS", "actor"), ("MORE", "12345")),
    )
    supervisor = Supervisor([actor], run_dir, lock.descriptor, lambda child: None)
    supervisor.start()
    child = supervisor.children["a"]
    assert await supervisor.wait_gone([child], 10) == []
    assert child.how_it_ended().endswith("exited with code 15")
    supervisor.close()
