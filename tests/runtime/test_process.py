"""How actor processes begin, and end with their launcher."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from pillion.messages import inboxes
from pillion.messages.control import ActorFailed
from pillion.runtime.channels import Inbox
from pillion.runtime.clock import NS_PER_S
from pillion.runtime.config import EngineConfig
from pillion.runtime.paths import RunDir
from pillion.runtime.process import actor_arguments, child_environment

ACTOR = """
import json, signal, sys
from pillion.runtime.process import enter
context = enter("tester")
if context.epoch == 7:
    raise KeyError("the test's own")
if context.epoch == 9:
    import subprocess
    print(flush=True)
    print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
    signal.pause()
print(json.dumps([context.name, context.epoch, context.config.model, str(context.run_dir.root)]), flush=True)
while context.epoch == 8:
    pass
for number in (signal.SIGINT, signal.SIGTERM):
    signal.raise_signal(number)
print("alive", flush=True)
sys.stdin.read()
"""


class Actor:
    """A process that enters as an actor does, with pipes that this test holds."""

    def __init__(self, run_dir: RunDir, epoch: int = 1, process_group: int | None = None) -> None:
        run_dir.config.write_bytes(EngineConfig(model="fake").to_json())
        lifetime_fd, self.our_lifetime_fd = os.pipe()
        lock_fd = os.open(run_dir.lock, os.O_RDWR | os.O_CREAT)
        self.process = subprocess.Popen(
            [sys.executable, "-c", ACTOR, *actor_arguments(run_dir, epoch, lifetime_fd, lock_fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(lifetime_fd, lock_fd),
            env=child_environment(),
            text=True,
            process_group=process_group,
        )
        os.close(lifetime_fd)
        os.close(lock_fd)

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def test_an_actor_knows_itself_ignores_signals_and_ends_with_its_launcher(run_dir: RunDir) -> None:
    actor = Actor(run_dir)
    assert json.loads(actor.read_line()) == ["tester", 1, "fake", str(run_dir.root)]
    assert actor.read_line() == "alive"
    os.close(actor.our_lifetime_fd)
    assert actor.process.wait(5) == -signal.SIGKILL
    actor.process.communicate()


def test_the_thread_that_started_an_actor_may_end(run_dir: RunDir) -> None:
    started: list[Actor] = []
    thread = threading.Thread(target=lambda: started.append(Actor(run_dir)))
    thread.start()
    thread.join()
    (actor,) = started
    actor.read_line()
    assert actor.read_line() == "alive"
    with pytest.raises(subprocess.TimeoutExpired):
        actor.process.wait(0.5)
    os.close(actor.our_lifetime_fd)
    assert actor.process.wait(5) == -signal.SIGKILL
    actor.process.communicate()


@pytest.mark.parametrize("state", ["stopped", "spinning"])
def test_an_actor_that_cannot_run_ends_with_its_launcher(run_dir: RunDir, state: str) -> None:
    actor = Actor(run_dir, epoch=8 if state == "spinning" else 1)
    actor.read_line()
    if state == "stopped":
        actor.process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{actor.process.pid}/stat")
        wait_until("it is stopped", 5, lambda: stat.read_text().split(") ")[1][0] == "T")
    os.close(actor.our_lifetime_fd)
    assert actor.process.wait(5) == -signal.SIGKILL
    actor.process.communicate()


def test_the_children_of_an_actor_end_with_its_launcher(run_dir: RunDir) -> None:
    actor = Actor(run_dir, epoch=9, process_group=0)
    actor.read_line()
    child = int(actor.read_line())
    os.close(actor.our_lifetime_fd)
    assert actor.process.wait(5) == -signal.SIGKILL
    wait_until("its child has ended", 5, lambda: not is_running(child))
    actor.process.communicate()


def is_running(pid: int) -> bool:
    """Whether there is such a process, unless nobody has waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


def test_an_actor_started_by_a_dead_launcher_ends(run_dir: RunDir) -> None:
    actor = Actor(run_dir)
    os.close(actor.our_lifetime_fd)
    assert actor.process.wait(10) == -signal.SIGKILL
    actor.process.communicate()


def test_an_exception_anywhere_in_main_is_told(run_dir: RunDir) -> None:
    launcher: Inbox[Any] = Inbox.bind(run_dir.inbox("launcher"), inboxes.LauncherInbox)
    actor = Actor(run_dir, epoch=7)
    failed = launcher.receive(10 * NS_PER_S)
    assert isinstance(failed, ActorFailed)
    assert (failed.actor, failed.epoch) == ("tester", 7)
    assert failed.message == '''KeyError: "the test's own"'''
    assert actor.process.wait(5) == 1
    stderr = actor.process.communicate()[1]
    assert "Traceback" in stderr
    assert "ERROR   tester[" in stderr
    launcher.close()
    os.close(actor.our_lifetime_fd)


def test_children_import_the_same_pillion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    import pillion

    script = "import pillion; print(pillion.__file__)"
    out = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env=child_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    ).stdout.strip()
    assert Path(out).samefile(pillion.__file__)
    assert child_environment()["PYTHONPATH"].endswith(":/elsewhere")


def test_grandchildren_do_not_hold_the_lock_or_the_pipe(run_dir: RunDir) -> None:
    script = (
        "import os, subprocess, sys\n"
        "from pillion.runtime.process import enter\n"
        "enter('tester')\n"
        "out = subprocess.run([sys.executable, '-c', 'import os; print(os.listdir(\"/proc/self/fd\"))'],"
        " close_fds=False, capture_output=True, text=True).stdout\n"
        "print(out)\n"
    )
    run_dir.config.write_bytes(EngineConfig(model="fake").to_json())
    lifetime_fd, ours = os.pipe()
    lock_fd = os.dup2(lifetime_fd, 201)
    os.dup2(lifetime_fd, 200)
    out = subprocess.run(
        [sys.executable, "-c", script, *actor_arguments(run_dir, 1, 200, lock_fd)],
        pass_fds=(200, lock_fd),
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    ).stdout
    assert "'2'" in out
    assert "'200'" not in out
    assert "'201'" not in out
    for descriptor in (lifetime_fd, ours, 200, 201):
        os.close(descriptor)
    wait_until("descriptors are closed", 1, lambda: not os.path.exists("/proc/self/fd/201"))
