"""Daemons of real processes with fake actors: start, status, failures, stops, and what they leave."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from waiting import wait_until

from pillion.messages.control import StopAccepted, StopRequest
from pillion.runtime.control_socket import ControlClient
from pillion.runtime.open_files import LEAST_OPEN_FILES
from pillion.runtime.paths import DaemonLock, RunDir, daemon_pid
from pillion.runtime.proc_files import age_s, cpu_seconds
from pillion.runtime.process import child_environment

from .conftest import StartDaemon, processes_of, sockets_of

ACTORS = ("kv_manager", "scheduler", "detokenizer", "gpu_worker")


def test_a_daemon_comes_up_forwards_the_geometry_and_stops_in_order(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()
    status = daemon.wait_state("ready")
    assert [actor.name for actor in status.actors] == ["launcher", *ACTORS]
    assert {actor.state for actor in status.actors} == {"running"}
    assert all(actor.rss_bytes > 1 << 20 for actor in status.actors)
    assert status.geometry is not None
    assert status.geometry.max_model_len == 128
    assert ("gpu_worker", "weights", 12.5) in status.start_phases
    assert {actor for actor, phase, _ in status.start_phases if phase == "ready"} == set(ACTORS)
    assert status.ready_after_s is not None
    assert 0 < status.ready_after_s <= status.uptime_s

    def last_messages() -> dict[str, object]:
        return {a.name: a.gauges.get("last") for a in daemon.status().actors}

    expected = {
        "kv_manager": "EngineGeometry",
        "scheduler": "EngineGeometry",
        "detokenizer": "EngineGeometry",
        "gpu_worker": "",
    }
    wait_until(
        "the geometry is everywhere", 30, lambda: expected.items() <= last_messages().items()
    )

    client = ControlClient(daemon.directory)
    assert client.ask(StopRequest()) == StopAccepted(pid=daemon.process.pid)
    assert client.wait_hang_up(10)
    client.close()
    code, stderr = daemon.wait_end(30)
    assert code == 0
    ends = [line.split("] ")[1].split()[0] for line in stderr if "exited with code 0" in line]
    assert ends == ["gpu_worker", "detokenizer", "scheduler", "kv_manager"]
    assert daemon.directory.log.read_text().splitlines() == stderr
    daemon.nothing_is_left()
    assert daemon_pid(daemon.directory) is None


def test_a_limit_of_open_files_that_is_too_low_is_refused_at_the_start(
    start_daemon: StartDaemon,
) -> None:
    few = ("sh", "-c", f'ulimit -n {LEAST_OPEN_FILES - 1}; exec "$@"', "sh")
    code, stderr = start_daemon(prefix=few).wait_end(30)
    assert code == 1
    assert f"may have {LEAST_OPEN_FILES - 1} files open" in stderr[-1]
    start_daemon(
        prefix=("sh", "-c", f'ulimit -Sn {LEAST_OPEN_FILES - 1}; exec "$@"', "sh")
    ).wait_state("ready")


@pytest.mark.parametrize("blocks", [0, 1])
def test_a_disk_that_is_full_at_the_start_is_told_in_a_line(
    start_daemon: StartDaemon, blocks: int
) -> None:
    """Not a byte fits, or the lock does and the configuration does not. A limit on files' sizes stands for it."""
    config = {"served_model_name": "x" * 1000}
    daemon = start_daemon(
        config=config, prefix=("sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh")
    )
    code, stderr = daemon.wait_end(30)
    assert code == 1
    file = daemon.directory.config if blocks else daemon.directory.lock
    assert stderr == [
        f"error: cannot write {file}: File too large; make room there, or set PILLION_RUNTIME_DIR"
    ]
    daemon.nothing_is_left()
    start_daemon().wait_state("ready")


def test_what_lies_in_the_run_directory_is_for_this_user_alone(start_daemon: StartDaemon) -> None:
    config = {"api_key": "secret", "http": "0"}
    daemon = start_daemon(config=config, prefix=("sh", "-c", 'umask 0; exec "$@"', "sh"))
    daemon.wait_state("ready")
    root = daemon.directory.root
    assert stat.S_IMODE(root.stat().st_mode) == 0o700, "what guards the sockets"
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in root.iterdir() if path.is_file()
    }
    assert modes == dict.fromkeys(("config.json", "daemon.log", "lock"), 0o600)


def test_the_status_answers_while_the_worker_loads(start_daemon: StartDaemon) -> None:
    daemon = start_daemon({"gpu_worker": "load_for_ever"})
    wait_until("the control socket answers", 30, daemon.answers)
    launcher_s = cpu_seconds(daemon.process.pid)
    # 0.3 s from start to answer on an idle machine; on a busy one the processor time has to do.
    assert age_s(daemon.process.pid) < 0.3 or launcher_s < 0.4
    daemon.wait_actors(dict.fromkeys(ACTORS[:3], "running"))
    status = daemon.status()
    assert status.state == "starting"
    assert {actor.name: actor.state for actor in status.actors}["gpu_worker"] == "starting"


@pytest.mark.parametrize("victim", ACTORS)
def test_without_restarts_the_death_of_any_actor_ends_the_daemon_with_the_cause(
    start_daemon: StartDaemon, victim: str
) -> None:
    daemon = start_daemon(config={"max_restarts": 0})
    daemon.wait_state("ready")
    pid = daemon.wait_actors({victim: "running"})[victim]
    os.kill(pid, signal.SIGKILL)
    code, stderr = daemon.wait_end(30)
    assert code == 1
    assert stderr[-1].endswith(f"failed: {victim} (pid {pid}) was killed by SIGKILL")
    if victim != "detokenizer":
        message = f"the engine failed: {victim} (pid {pid}) was killed by SIGKILL"
        assert f"detokenizer got EngineFailed(message='{message}', code='internal')" in stderr
    daemon.nothing_is_left()


@pytest.mark.parametrize(
    ("behaviour", "cause"),
    [
        ("exit_at_start", "exited with code 3"),
        ("raise_at_start", "exited with code 1: ValueError: weights are missing"),
        ("raise_in_loop", "exited with code 1: RuntimeError: the test's own fault"),
    ],
)
def test_the_last_line_is_the_first_cause(
    start_daemon: StartDaemon, behaviour: str, cause: str
) -> None:
    reading, writing = os.pipe()
    daemon = start_daemon(
        {"scheduler": behaviour},
        {"max_restarts": 0},
        arguments=[f"--ready-fd={writing}"],
        pass_fds=(writing,),
    )
    os.close(writing)
    code, stderr = daemon.wait_end(60)
    assert code == 1
    assert stderr[-1].split("] ", 1)[1].startswith("failed: scheduler (pid ")
    assert stderr[-1].endswith(cause)
    assert ("Traceback" in "\n".join(stderr)) == behaviour.startswith("raise")
    with open(reading) as pipe:
        outcome = json.loads(pipe.read())
    if behaviour == "raise_in_loop":  # it may have been ready for a moment
        assert outcome["ready"] or outcome["error"].endswith(cause)
    else:
        assert outcome["ready"] is False
        assert outcome["error"].endswith(cause)
    daemon.nothing_is_left()


def test_an_actor_killed_while_it_loads_is_noticed(start_daemon: StartDaemon) -> None:
    daemon = start_daemon({"gpu_worker": "load_for_ever"})
    wait_until("actors are started", 30, lambda: len(processes_of(daemon.directory)) == 4)
    pids = daemon.wait_actors({"detokenizer": "running"})
    killed = datetime.now()
    os.kill(pids["gpu_worker"], signal.SIGKILL)
    code, stderr = daemon.wait_end(30)
    assert code == 1
    cause = f"gpu_worker (pid {pids['gpu_worker']}) was killed by SIGKILL"
    assert stderr[-1].endswith(cause)
    noticed = next(line for line in stderr if line.endswith(cause))
    assert (datetime.fromisoformat(noticed[:23]) - killed).total_seconds() < 2.0


def test_a_start_that_takes_too_long_fails_and_says_what_is_missing(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon({"gpu_worker": "load_for_ever"}, {"start_timeout_s": 4.0})
    code, stderr = daemon.wait_end(60)
    assert code == 1
    assert "failed: not ready after start_timeout_s = 4 s: waiting for" in stderr[-1]
    assert "gpu_worker" in stderr[-1]
    daemon.nothing_is_left()


def test_sigterm_drains_and_refuses_to_hang_on_a_deaf_actor(start_daemon: StartDaemon) -> None:
    daemon = start_daemon({"kv_manager": "deaf"})
    daemon.wait_state("ready")
    daemon.process.send_signal(signal.SIGTERM)
    code, stderr = daemon.wait_end(30)
    assert code == 0
    text = "\n".join(stderr)
    assert text.index("detokenizer got Drain") < text.index("detokenizer got Shutdown")
    assert "kv_manager" in text.split("was killed by SIGKILL")[0].splitlines()[-1]
    daemon.nothing_is_left()


def test_a_second_signal_ends_a_drain_at_once(start_daemon: StartDaemon) -> None:
    daemon = start_daemon({"detokenizer": "never_drained"}, {"drain_s": 60.0})
    daemon.wait_state("ready")
    daemon.process.send_signal(signal.SIGTERM)
    wait_until("it drains", 30, lambda: daemon.status().state == "draining")
    assert {a.state for a in daemon.status().actors if a.name != "launcher"} == {"draining"}
    daemon.process.send_signal(signal.SIGTERM)
    code, stderr = daemon.wait_end(30)  # the drain has a minute
    assert code == 0
    assert (
        "detokenizer got EngineFailed(message='the daemon is stopping', code='unavailable')"
        in stderr
    )
    daemon.nothing_is_left()


def test_an_ordinary_stop_does_not_cut_a_drain_short(start_daemon: StartDaemon) -> None:
    daemon = start_daemon({"detokenizer": "never_drained"}, {"drain_s": 60.0})
    daemon.wait_state("ready")
    first, second = ControlClient(daemon.directory), ControlClient(daemon.directory)
    first.ask(StopRequest())
    second.ask(StopRequest())
    assert daemon.status().state == "draining"
    third = ControlClient(daemon.directory)
    third.ask(StopRequest(drain_s=0.0))
    for client in (first, second, third):
        assert client.wait_hang_up(5)
        client.close()
    assert daemon.wait_end(30)[0] == 0


def test_without_restarts_an_actor_that_dies_during_a_drain_is_a_failure(
    start_daemon: StartDaemon,
) -> None:
    config = {"drain_s": 60.0, "max_restarts": 0}
    daemon = start_daemon({"detokenizer": "never_drained"}, config)
    daemon.wait_state("ready")
    pid = daemon.wait_actors({"scheduler": "running"})["scheduler"]
    daemon.process.send_signal(signal.SIGTERM)
    wait_until("it drains", 30, lambda: daemon.status().state == "draining")
    os.kill(pid, signal.SIGKILL)
    code, stderr = daemon.wait_end(30)
    assert code == 1
    assert stderr[-1].endswith(f"scheduler (pid {pid}) was killed by SIGKILL")


def test_sigint_during_load_ends_it_at_once(start_daemon: StartDaemon) -> None:
    reading, writing = os.pipe()
    daemon = start_daemon(
        {"gpu_worker": "load_for_ever"}, arguments=[f"--ready-fd={writing}"], pass_fds=(writing,)
    )
    os.close(writing)
    wait_until("the worker loads", 30, lambda: len(processes_of(daemon.directory)) == 4)
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.wait_end(30)[0] == 0
    with open(reading) as pipe:
        assert json.loads(pipe.read()) == {
            "ready": False,
            "error": "stopped before it was ready: SIGINT",
        }
    daemon.nothing_is_left()


def test_sigkill_of_the_launcher_leaves_nothing_and_the_next_start_works(
    start_daemon: StartDaemon, runtime_root: Path
) -> None:
    directory = RunDir(runtime_root / "d")
    first = start_daemon()
    first.wait_state("ready")
    assert len(processes_of(directory)) == 4
    first.process.kill()
    first.process.wait()
    wait_until("the actors are gone", 5, lambda: processes_of(directory) == [])
    assert sockets_of(directory) != []  # nobody was left who could remove them
    second = start_daemon()
    second.wait_state("ready")
    earlier = set(processes_of(directory))
    second.process.kill()
    daemon = start_daemon()  # at once: the lock waits for what is still going
    daemon.wait_state("ready")
    assert earlier.isdisjoint(processes_of(directory))
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait_end(30)[0] == 0
    daemon.nothing_is_left()


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.2, 0.3, 0.5])
def test_sigkill_of_the_launcher_at_any_moment_of_a_start_leaves_nothing(
    start_daemon: StartDaemon, runtime_root: Path, after_s: float
) -> None:
    directory = RunDir(runtime_root / "d")
    memory = set(os.listdir("/dev/shm"))
    daemon = start_daemon()
    began = time.monotonic()
    wait_until("the moment has come", 5, lambda: time.monotonic() - began >= after_s)
    daemon.process.kill()
    daemon.process.wait()
    wait_until("the actors are gone", 5, lambda: processes_of(directory) == [])
    assert set(os.listdir("/dev/shm")) <= memory


def test_an_actor_that_is_stopped_ends_with_a_launcher_that_is_killed(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()
    daemon.wait_state("ready")
    for pid in processes_of(daemon.directory):
        os.kill(pid, signal.SIGSTOP)
    daemon.process.kill()
    daemon.process.wait()
    wait_until("the actors are gone", 5, lambda: processes_of(daemon.directory) == [])


def test_a_second_daemon_of_the_same_name_is_refused_by_the_lock(start_daemon: StartDaemon) -> None:
    first = start_daemon({"gpu_worker": "load_for_ever"})
    wait_until("the first answers", 30, first.answers)
    second = start_daemon()
    code, stderr = second.wait_end(30)
    assert code == 1
    assert len(stderr) == 1
    assert stderr[0].startswith("error: a daemon named 'd' already runs as pid ")
    assert f"pid {first.process.pid} " in stderr[0]
    assert first.answers()


def test_a_file_in_the_way_of_a_socket_is_refused_and_kept(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    directory = daemon.directory
    daemon.process.kill()
    daemon.process.wait()
    directory.create()
    for path in (directory.control_socket, directory.inbox("launcher")):
        path.unlink(missing_ok=True)
        path.write_text("precious")
        refused = start_daemon()
        code, stderr = refused.wait_end(60)
        assert code == 1
        assert (
            stderr[-1]
            == f"error: {path} is in the way and is not a socket: move it and start again"
        )
        assert path.read_text() == "precious"
        path.unlink()
        wait_until("nothing runs", 5, lambda: processes_of(directory) == [])


def test_the_daemon_ends_with_the_process_that_holds_its_lifetime(
    start_daemon: StartDaemon,
) -> None:
    reading, writing = os.pipe()
    daemon = start_daemon(arguments=[f"--lifetime-fd={reading}"], pass_fds=(reading,))
    os.close(reading)
    daemon.wait_state("ready")
    os.close(writing)
    assert daemon.wait_end(30)[0] == 0
    assert processes_of(daemon.directory) == []
    assert not daemon.directory.root.exists()


def test_an_idle_daemon_uses_no_processor_time(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    daemon.wait_state("ready")
    pids = [daemon.process.pid, *processes_of(daemon.directory)]
    statistics_are_out = time.monotonic() + 1.2
    wait_until("statistics are out", 5, lambda: time.monotonic() > statistics_are_out)
    used = [cpu_seconds(pid) for pid in pids]
    began = time.monotonic()
    wait_until("three seconds are over", 5, lambda: time.monotonic() - began > 3)
    idle = [cpu_seconds(pid) - before for pid, before in zip(pids, used, strict=True)]
    # 1 % of a core, and one tick of the kernel's clock per process.
    assert sum(idle) <= 0.03 + 0.01 * len(pids)


def test_garbage_on_the_control_socket_does_not_disturb_the_launcher(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon({"gpu_worker": "load_for_ever"})
    wait_until("the control socket answers", 30, daemon.answers)
    for garbage in (
        b"",
        b"\x01",
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\4\0\0\0abcd",
        b"GET / HTTP/1.1\r\n\r\n" * 1000,
        os.urandom(70_000),
    ):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(5)
            peer.connect(str(daemon.directory.control_socket))
            try:
                peer.sendall(garbage)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(4096):
                    pass
            except ConnectionError:
                pass
        assert daemon.answers()
    assert daemon.process.poll() is None


def test_junk_of_strangers_on_the_ring_ends_nobody(start_daemon: StartDaemon) -> None:
    """What no process of the daemon has sent: malformed messages, and bytes that are not even ZeroMQ's."""
    daemon = start_daemon(config={"max_restarts": 0})
    pids = daemon.wait_actors(dict.fromkeys(ACTORS, "running"))
    script = (
        "import sys; from pathlib import Path\n"
        "from pillion.runtime.channels import Outbox\n"
        "for path in sys.argv[1:]:\n"
        "    outbox = Outbox.connect(Path(path))\n"
        "    for junk in (b'garbage', b'', b'\\x93' * 100_000) * 3:\n"
        "        outbox.send_bytes(junk)\n"
        "    outbox.close()\n"
    )
    inboxes = [str(daemon.directory.inbox(name)) for name in ("launcher", *ACTORS)]
    subprocess.run(
        [sys.executable, "-c", script, *inboxes], check=True, timeout=30, env=child_environment()
    )
    for path in inboxes:
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 70_000, b""):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(path)
                with contextlib.suppress(ConnectionError):
                    stranger.sendall(junk)

    def told() -> int:
        return daemon.directory.log.read_text().count("dropped a malformed frame of 7 bytes")

    wait_until("all have said it, once", 10, lambda: told() == len(inboxes))
    assert daemon.wait_actors(dict.fromkeys(ACTORS, "running")) == pids
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait_end(30)[0] == 0


def test_a_stopped_actor_does_not_hold_up_the_stop(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    daemon.wait_state("ready")
    pids = daemon.wait_actors({"scheduler": "running"})
    os.kill(pids["scheduler"], signal.SIGSTOP)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait_end(30)[0] == 0
    daemon.nothing_is_left()
    DaemonLock.acquire(daemon.directory).release()
