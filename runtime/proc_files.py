"""What the kernel knows about a process, read from /proc."""

import os
import resource
import socket
import struct
import time
from pathlib import Path
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Positions after the command name in /proc/<pid>/stat, which is field 2 of proc(5).
_STATE, _PARENT = 3 - 3, 4 - 3
_UTIME, _STIME, _START = 14 - 3, 15 - 3, 22 - 3


def rss_bytes(pid: int) -> int:
    """Resident memory; 0 if there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def cpu_seconds(pid: int) -> float:
    """Processor time used so far, all threads together; 0 if there is no such process."""
    fields = _stat_fields(pid)
    return (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS_PER_S if fields else 0.0


def ended_cpu_seconds() -> float:
    """Processor time of this process's children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def num_open_files(pid: int) -> int:
    """Open descriptors; 0 if there is no such process."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def age_s(pid: int) -> float:
    """Seconds since the process was started, interpreter start included; 0 if there is none."""
    fields = _stat_fields(pid)
    if not fields:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_START]) / _TICKS_PER_S)


def is_stopped(pid: int) -> bool:
    """Whether a signal such as SIGSTOP has stopped the process. A debugger's hold on it does not count."""
    return _state(pid) == "T"


def is_zombie(pid: int) -> bool:
    """Whether the process has ended and waits for its parent to notice."""
    return _state(pid) == "Z"


def children_of(parent: int) -> list[int]:
    """The processes whose parent this is, zombies among them."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [
        pid for pid in sorted(pids) if _stat_fields(pid)[_PARENT : _PARENT + 1] == [str(parent)]
    ]


def pids_with_argument(argument: str) -> list[int]:
    """The living processes that have exactly this word on their command line."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return sorted(pid for pid in pids if has_argument(pid, argument))


def has_argument(pid: int, argument: str) -> bool:
    """Whether the process lives and has exactly this word on its command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended, or is not ours
    return os.fsencode(argument) in words


def peer_pid(connected: socket.socket) -> int:
    """The process at the other end of a Unix socket, or the one that listened there."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(raw)[0]
    return pid


def _state(pid: int) -> str:
    return (_stat_fields(pid) or [""])[_STATE]


def _stat_fields(pid: int) -> list[str]:
    try:
        # The command name is in parentheses and may itself hold spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
