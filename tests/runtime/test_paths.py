"""Run directories, socket paths and the lock."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from pillion.runtime import paths
from pillion.runtime.cli import main
from pillion.runtime.client import Client
from pillion.runtime.control_socket import ControlClient
from pillion.runtime.errors import ConfigError
from pillion.runtime.paths import DaemonLock, RunDir, claim_socket_path, daemon_pid


def test_where_run_directories_lie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PILLION_RUNTIME_DIR", "/somewhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert paths.run_dir("a").root == Path("/somewhere/a")
    monkeypatch.delenv("PILLION_RUNTIME_DIR")
    assert paths.run_dir("a").root == tmp_path / "pillion" / "a"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert paths.run_dir("a").root == Path(f"/tmp/pillion-{os.getuid()}/a")


def test_a_place_in_tmp_that_another_user_has_made_is_nobody_to_talk_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PILLION_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(paths, "_shared_fallback", lambda: tmp_path / "place")
    assert paths.run_dir("a").root == tmp_path / "place" / "a"
    (tmp_path / "place").symlink_to(tmp_path)
    assert paths.run_dir("a").root == tmp_path / "place" / "a"
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    for ask in (ControlClient, Client):
        with pytest.raises(ConfigError, match=f"belongs to the user with id {owner}"):
            ask(paths.run_dir("a") if ask is ControlClient else "a")


def test_a_lock_that_this_user_may_not_open(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, *_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    assert main(["serve", "m", "--name", run_dir.root.name]) == 1
    assert capsys.readouterr().err.startswith(f"error: this user may not open {run_dir.lock}")
    with pytest.raises(ConfigError, match="lock: Permission denied; make it writable"):
        DaemonLock.acquire(run_dir)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a b", "a\n", "é", "x" * 65])
def test_names_that_are_no_file_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name must be"):
        paths.run_dir(name)


def test_the_directory_is_private(runtime_root: Path) -> None:
    directory = RunDir(runtime_root / "d")
    directory.root.mkdir(mode=0o777)
    directory.root.chmod(0o777)
    directory.create()
    assert directory.root.stat().st_mode & 0o777 == 0o700


def test_a_link_or_file_in_place_of_the_directory_is_refused(runtime_root: Path) -> None:
    (runtime_root / "elsewhere").mkdir()
    (runtime_root / "d").symlink_to(runtime_root / "elsewhere")
    with pytest.raises(ConfigError, match="not a directory: remove it"):
        RunDir(runtime_root / "d").create()
    (runtime_root / "f").touch()
    with pytest.raises(ConfigError, match="cannot create"):
        RunDir(runtime_root / "f").create()


def test_a_path_too_long_for_a_socket_is_refused_before_anything_is_made(
    runtime_root: Path,
) -> None:
    directory = RunDir(runtime_root / ("x" * 60) / ("y" * 40))
    with pytest.raises(ConfigError, match=r"bytes and the system allows 107.*PILLION_RUNTIME_DIR"):
        directory.create()
    assert list(runtime_root.iterdir()) == []


def test_the_longest_allowed_path_can_be_bound(runtime_root: Path) -> None:
    path = runtime_root / ("s" * (paths.MAX_SOCKET_PATH_BYTES - len(str(runtime_root)) - 1))
    claim_socket_path(path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    with pytest.raises(ConfigError, match="108 bytes"):
        claim_socket_path(path.with_name(path.name + "s"))


def test_a_socket_of_the_dead_is_removed_and_of_the_living_refused(runtime_root: Path) -> None:
    path = runtime_root / "s.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(0)
        with pytest.raises(ConfigError, match=f"in use by pid {os.getpid()}"):
            claim_socket_path(path)
    assert path.is_socket()
    claim_socket_path(path)
    assert not path.exists()
    claim_socket_path(path)


def test_a_live_socket_with_a_full_backlog_is_refused(runtime_root: Path) -> None:
    path = runtime_root / "s.sock"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as waiting:
        server.bind(str(path))
        server.listen(0)
        waiting.connect(str(path))
        with pytest.raises(ConfigError, match="in use"):
            claim_socket_path(path)


def test_what_is_not_a_socket_is_left_alone(runtime_root: Path) -> None:
    path = runtime_root / "s.sock"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="not a socket"):
        claim_socket_path(path)
    assert path.read_text() == "precious"


def test_remove_sockets_removes_only_sockets(run_dir: RunDir) -> None:
    for path in (run_dir.client_socket, run_dir.inbox("a"), run_dir.root / "other"):
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    run_dir.log.write_text("a line")
    run_dir.inbox("b").write_text("a file")
    run_dir.remove_sockets()
    assert {path.name for path in run_dir.root.iterdir()} == {"daemon.log", "b.1.ipc", "other"}


def test_the_lock_decides_and_names_its_holder(run_dir: RunDir) -> None:
    assert daemon_pid(run_dir) is None
    lock = DaemonLock.acquire(run_dir)
    assert daemon_pid(run_dir) == os.getpid()
    with pytest.raises(ConfigError, match=rf"'d' already runs as pid {os.getpid()} "):
        DaemonLock.acquire(run_dir)
    with pytest.raises(ConfigError, match="already runs"):
        paths.refuse_if_running(run_dir)
    lock.release()
    assert daemon_pid(run_dir) is None
    paths.refuse_if_running(run_dir)
    run_dir.lock.write_text("garbage that is no pid")
    DaemonLock.acquire(run_dir).release()


def test_the_lock_waits_for_the_actors_of_a_dead_launcher(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    lock = DaemonLock.acquire(run_dir)
    actor = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", run_dir.argument],
        stdin=subprocess.PIPE,
        pass_fds=(lock.descriptor,),
    )
    lock.release()  # what the launcher's death does
    run_dir.lock.write_text(f"{dead.pid}\n")
    assert daemon_pid(run_dir) == dead.pid
    monkeypatch.setattr(paths, "EARLIER_LIFE_DEADLINE_S", 0.1)
    with pytest.raises(
        ConfigError, match=rf"earlier daemon.*{dead.pid}.*still hold.*pids are {actor.pid}"
    ):
        DaemonLock.acquire(run_dir)
    monkeypatch.setattr(paths, "EARLIER_LIFE_DEADLINE_S", 5.0)
    assert actor.stdin is not None
    actor.stdin.close()
    DaemonLock.acquire(run_dir).release()
    wait_until("the actor has ended", 5, lambda: actor.poll() is not None)
