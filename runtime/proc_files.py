"""What the kernel knows about a process, read from /proc."""

import os
import resource
import time
from pathlib import Path
from typing import Final

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
    wanted = os.fsencode(argument)
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended, or is not ours
            if wanted in words:
                pids.append(int(entry.name))
    return sorted(pids)


def _state(pid: int) -> str:
    return (_stat_fields(pid) or [""])[_STATE]


def _stat_fields(pid: int) -> list[str]:
    try:
        # The command name is in parentheses and may itself hold spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
