"""The log of a daemon: every process appends lines to one file, and others follow it."""

import logging
import os
import sys
import threading
from pathlib import Path
from typing import BinaryIO, Final

from pillion.runtime.errors import ConfigError

LEVEL_VARIABLE: Final = "PILLION_LOG"
MAX_LOG_BYTES: Final = 8 * 1024 * 1024  # at which a start begins a new file and keeps the last one
FOLLOW_INTERVAL_S: Final = 0.1
_COPY_BYTES: Final = 64 * 1024
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def start_logging(actor: str) -> None:
    """Sends this process's log to its standard error, each line with time, level, actor and pid.

    $PILLION_LOG chooses the level: debug, info (the default), warning or error. Raises ConfigError else.
    """
    wanted = os.environ.get(LEVEL_VARIABLE) or "info"
    level = _LEVELS.get(wanted.lower())
    if level is None:
        raise ConfigError(
            f"{LEVEL_VARIABLE} must be one of {', '.join(_LEVELS)}, got {wanted!r:.40}"
        )
    stderr = logging.StreamHandler(sys.stderr)
    stderr.setFormatter(
        logging.Formatter(
            f"%(asctime)s.%(msecs)03d %(levelname)-7s {actor}[%(process)d] %(message)s",
            datefmt="%Y-%m-%d %H:%M:%S",
        )
    )
    logging.basicConfig(level=level, handlers=[stderr], force=True)


def open_log(path: Path) -> int:
    """A descriptor that appends to the log. A log that has grown large is kept as <name>.1 first."""
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def tail_offset(path: Path, num_lines: int) -> int:
    """Where in the file the last `num_lines` lines begin."""
    with path.open("rb") as file:
        end = position = file.seek(0, os.SEEK_END)
        missing = num_lines + 1  # the newline before the first line that is wanted
        while position > 0:
            start = max(0, position - _COPY_BYTES)
            file.seek(start)
            data = file.read(position - start)
            if position == end and not data.endswith(b"\n"):
                missing -= 1  # the last line is still being written
            cut = len(data)
            while missing > 0 and (cut := data.rfind(b"\n", 0, cut)) >= 0:
                missing -= 1
            if missing == 0:
                return start + cut + 1
            position = start
    return 0


class LogFollower:
    """Copies what is appended to a log to a stream.

    Looking ten times a second is cheaper to own than inotify and costs about a thousandth of a core.
    """

    def __init__(self, path: Path, offset: int, out: BinaryIO) -> None:
        self._file = path.open("rb")
        self._file.seek(offset)
        self._out = out
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log follower", daemon=True)

    def copy(self) -> None:
        """Copies what is new."""
        while data := self._file.read(_COPY_BYTES):
            self._out.write(data)
            self._out.flush()

    def start(self) -> None:
        """Goes on copying in a thread of its own, so that a blocked terminal holds up nobody else."""
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Copies the rest, unless the stream takes longer than the timeout."""
        self._closing.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._closing.wait(FOLLOW_INTERVAL_S):
                self.copy()
            self.copy()
        except OSError:
            pass  # the terminal or pipe is gone; the log itself is in the file
