"""Why a launcher that lives does not answer, as far as the kernel knows."""

from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.paths import RunDir, daemon_pid
from pillion.runtime.proc_files import is_stopped


def why_silent(directory: RunDir) -> str | None:
    """That the launcher is stopped, and what to do about it; None if it is not."""
    try:
        pid = daemon_pid(directory)
    except DaemonUnavailable:  # another user's
        return None
    if pid is None or not is_stopped(pid):
        return None
    return (
        f"its launcher (pid {pid}) is stopped, as by Ctrl-Z or SIGSTOP: `kill -CONT {pid}` lets it go on,"
        f" `kill -KILL {pid}` ends it with all its actors"
    )
