"""The socket of a daemon's text edge: where it is, and what is wrong when it cannot be reached."""

import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from pillion.runtime.errors import DaemonUnavailable, InvalidRequest
from pillion.runtime.paths import RunDir, check_socket_path, run_dir
from pillion.runtime.silence import why_silent

DaemonName = str | os.PathLike[str]


def socket_paths(names: DaemonName | Sequence[DaemonName]) -> tuple[Path, ...]:
    """As `socket_path`, of one or several daemons. Raises InvalidRequest for none."""
    if isinstance(names, str | os.PathLike):
        return (socket_path(names),)
    if not names:
        raise InvalidRequest("name takes a daemon's name or a list of them, got an empty list")
    return tuple(map(socket_path, names))


def socket_path(name: DaemonName) -> Path:
    """Where a daemon's text edge is: by daemon name, or a path (anything with a slash)."""
    path = os.fspath(name)
    if os.sep not in path:
        return run_dir(path).client_socket
    check_socket_path(Path(path))
    return Path(path)


def open_socket(path: Path, timeout_s: float) -> socket.socket:
    """A connected socket with this timeout set. Raises DaemonUnavailable."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(os.fspath(path))
    except OSError as error:
        connection.close()
        raise connect_failure(path, error) from error
    return connection


def connect_failure(path: Path, error: OSError) -> DaemonUnavailable:
    """The exception that says why no connection came about, and what the user can do."""
    # Of a text edge that is not there yet or not any more, or that is busy.
    passing = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN, errno.ECONNRESET, errno.EPIPE)
    may_pass = isinstance(error, TimeoutError) or error.errno in passing
    return DaemonUnavailable(_explain(path, error), may_pass=may_pass)


def _explain(path: Path, error: OSError) -> str:
    start = "start one with `pillion serve MODEL`"
    if path.name == "client.sock":
        name = path.parent.name
        start = (
            f"start one with `pillion serve MODEL --name {name}`" if name != "default" else start
        )
        whom = f"no Pillion daemon named {name!r} answers"
    else:
        whom = f"no Pillion daemon answers at {path}"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"{whom} (there is no socket {path}): {start}"
    if error.errno == errno.ECONNREFUSED:
        return f"{whom} (the one that made {path} is gone): {start}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{whom}: this user may not open {path}; a daemon serves the user who started it"
    if isinstance(error, TimeoutError) or error.errno == errno.EAGAIN:
        reason = why_silent(RunDir(path.parent)) or "its daemon is busy or stopped"
        return f"{whom} in time: {path} is there but {reason}"
    return f"{whom}: {error}"
