"""The machine's main memory."""

from pathlib import Path
from typing import Final

_CGROUP: Final = Path("/sys/fs/cgroup")


def free_memory_bytes() -> int:
    """Main memory that this process could still take: the machine's, or its control group's if less."""
    meminfo = Path("/proc/meminfo").read_text()
    (available,) = (line for line in meminfo.splitlines() if line.startswith("MemAvailable:"))
    free = int(available.split()[1]) * 1024
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except OSError:
        return free
    return free if limit == "max" else min(free, max(0, int(limit) - used))
