"""Where a daemon's files are: its run directory, socket names and the lock that says whether it lives."""

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pillion.runtime.errors import ConfigError, DaemonUnavailable
from pillion.runtime.proc_files import peer_pid, pids_with_argument

MAX_SOCKET_PATH_BYTES: Final = 107  # sockaddr_un holds 108 with the closing zero
EARLIER_LIFE_DEADLINE_S: Final = 5.0  # actors end themselves within this time of their launcher
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class RunDir:
    """The files of one daemon."""

    root: Path

    @property
    def argument(self) -> str:
        """The word on an actor's command line that says to which daemon it belongs."""
        return f"--run-dir={self.root}"

    def inbox(self, actor: str, epoch: int = 1) -> Path:
        """The ring socket of one life of an actor: what was sent to an earlier life never reaches this one."""
        return self.root / f"{actor}.{epoch}.ipc"

    @property
    def client_socket(self) -> Path:
        """Where clients meet the text edge."""
        return self.root / "client.sock"

    @property
    def control_socket(self) -> Path:
        """Where the command line meets the launcher."""
        return self.root / "control.sock"

    @property
    def config(self) -> Path:
        """The configuration that the actors read."""
        return self.root / "config.json"

    @property
    def log(self) -> Path:
        """What every process of the daemon says."""
        return self.root / "daemon.log"

    @property
    def lock(self) -> Path:
        """Locked as long as any process of the daemon lives; holds the launcher's pid."""
        return self.root / "lock"

    def create(self) -> None:
        """Makes the directory, for this user alone.

        Raises ConfigError if a socket name would not fit or the directory belongs to someone else.
        """
        longest = max(
            self.inbox("gpu_worker999", 99999), self.control_socket, key=lambda path: len(str(path))
        )
        check_socket_path(longest)
        if self.root.parent == _shared_fallback():
            _make_private(self.root.parent)
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot create {self.root.parent}: {error.strerror}") from error
        _make_private(self.root)

    def write_config(self, data: bytes) -> None:
        """Keeps the configuration for the actors, for no other user's eyes: it may hold keys."""
        with usable(self.config):
            self.config.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(self.config, flags, 0o600), "wb") as file:
                file.write(data)

    def remove_sockets(self) -> None:
        """Removes what a daemon that is gone left behind; the lock must be held."""
        with usable(self.root):
            for path in self.root.iterdir():
                if path.suffix in (".ipc", ".sock") and stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Removes the directory and its files; the lock must be held."""
        for path in self.root.iterdir():
            path.unlink()
        self.root.rmdir()


def run_dir(name: str) -> RunDir:
    """The run directory of the daemon of this name, which need not exist.

    It lies in $PILLION_RUNTIME_DIR, else in $XDG_RUNTIME_DIR/pillion, else in /tmp/pillion-<uid>. Raises ConfigError
    if the last one is not this user's: anybody may make it, and listen there.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"name must be 1 to 64 letters, digits, '.', '_' or '-' and begin with a letter or digit, "
            f"got {name!r:.80}"
        )
    root = runtime_root()
    if root == _shared_fallback():
        _refuse_foreign(root)
    return RunDir(root / name)


def runtime_root() -> Path:
    """The directory that holds the run directories of this user's daemons."""
    own = os.environ.get("PILLION_RUNTIME_DIR")
    if own:
        return Path(own).absolute()
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session and os.path.isdir(session):
        return Path(session).absolute() / "pillion"
    return _shared_fallback()


def cache_root() -> Path:
    """Where files are kept that can be made again: `$XDG_CACHE_HOME/pillion`, by default ~/.cache/pillion."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base and os.path.isabs(base) else Path("~/.cache").expanduser()
    return root / "pillion"


@contextlib.contextmanager
def usable(path: Path) -> Iterator[None]:
    """Around what makes or writes a file of a run directory. Raises ConfigError if the system refuses it."""
    try:
        yield
    except OSError as error:
        advice = "make room there" if error.errno in _FULL else "make it writable"
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; {advice}, or set PILLION_RUNTIME_DIR"
        ) from error


def check_socket_path(path: Path) -> None:
    """Raises ConfigError if the kernel could not bind a Unix socket of this name."""
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"the socket path {path} has {length} bytes and the system allows "
            f"{MAX_SOCKET_PATH_BYTES}: choose a shorter name or set PILLION_RUNTIME_DIR"
        )


def claim_socket_path(path: Path) -> None:
    """Makes sure that a socket can be bound here: the socket file of a dead process is removed.

    Raises ConfigError if the path is too long, if a live process listens there (named by its pid) or if
    the file is not a socket (it is left alone).
    """
    check_socket_path(path)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} is in the way and is not a socket: move it and start again")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        error = probe.connect_ex(os.fsencode(path))
        if error in (0, errno.EAGAIN):  # EAGAIN: alive, with a full backlog
            raise ConfigError(f"{path} is in use{_by_whom(probe) if error == 0 else ''}")
    path.unlink(missing_ok=True)


class DaemonLock:
    """The lock of a run directory. Actors inherit its descriptor, so it is free only when all are gone."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def acquire(cls, directory: RunDir) -> "DaemonLock":
        """Takes the lock and writes this process's pid into it.

        Waits up to 5 s for the actors of a launcher that was killed. Raises ConfigError if a daemon lives.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with usable(directory.lock):
            descriptor = os.open(directory.lock, flags, 0o600)
        deadline = time.monotonic() + EARLIER_LIFE_DEADLINE_S
        while not _try_lock(descriptor):
            pid = _read_pid(descriptor)
            launcher_lives = pid is not None and os.path.exists(f"/proc/{pid}")
            if launcher_lives or time.monotonic() > deadline:
                os.close(descriptor)
                raise ConfigError(_held_message(directory, pid, launcher_lives))
            time.sleep(0.02)
        try:
            with usable(directory.lock):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except ConfigError:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Lets go; the lock is free when the actors have ended too."""
        os.close(self.descriptor)


def daemon_pid(directory: RunDir) -> int | None:
    """The launcher's pid if any process of the daemon lives, else None.

    Raises DaemonUnavailable if this user may not look.
    """
    try:
        descriptor = os.open(directory.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise DaemonUnavailable(
            f"this user may not open {directory.lock}: what runs there is another one's"
        ) from error
    try:
        return None if _try_lock(descriptor, fcntl.LOCK_SH) else _read_pid(descriptor)
    finally:
        os.close(descriptor)


def refuse_if_running(directory: RunDir) -> None:
    """Raises ConfigError, naming the pid, if a daemon lives here. The lock has the last word."""
    pid = daemon_pid(directory)
    if pid is not None and os.path.exists(f"/proc/{pid}"):
        raise ConfigError(_held_message(directory, pid, launcher_lives=True))


def _try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _held_message(directory: RunDir, pid: int | None, launcher_lives: bool) -> str:
    name = directory.root.name
    if launcher_lives:
        return (
            f"a daemon named {name!r} already runs as pid {pid} in {directory.root}: "
            f"stop it (pillion stop --name {name}) or choose another --name"
        )
    actors = ", ".join(map(str, pids_with_argument(directory.argument))) or "not known"
    return (
        f"processes of an earlier daemon named {name!r} (its launcher was pid {pid}) still hold "
        f"{directory.lock} after {EARLIER_LIFE_DEADLINE_S:g} s; their pids are {actors}"
    )


def _shared_fallback() -> Path:
    return Path(f"/tmp/pillion-{os.getuid()}")


def _refuse_foreign(path: Path) -> None:
    try:
        owner = path.lstat().st_uid
    except FileNotFoundError:
        return
    if owner != os.getuid():
        raise ConfigError(
            f"{path} belongs to the user with id {owner}: set PILLION_RUNTIME_DIR to a directory of your own"
        )


def _make_private(path: Path) -> None:
    """Others may be able to create names in the parent directory, so whoever owns this one matters."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
        is_directory = stat.S_ISDIR(found.st_mode)
        if is_directory and found.st_uid == os.getuid():
            path.chmod(0o700)
            return
    except OSError as error:
        raise ConfigError(f"cannot create {path}: {error.strerror}") from error
    if is_directory:
        pids = ", ".join(map(str, pids_with_argument(RunDir(path).argument)))
        daemon = f", whose daemon runs there (its actors' pids are {pids})" if pids else ""
        raise ConfigError(
            f"{path} belongs to the user with id {found.st_uid}{daemon}: choose another --name or set"
            " PILLION_RUNTIME_DIR"
        )
    raise ConfigError(f"{path} is not a directory: remove it or set PILLION_RUNTIME_DIR")


def _by_whom(connected: socket.socket) -> str:
    return f" by pid {peer_pid(connected)}"
