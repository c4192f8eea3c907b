"""The log of a daemon: every process appends lines to one file, and others follow it."""

import contextlib
import logging
import os
import sys
import threading
from pathlib import Path
from typing import BinaryIO, Final

from pillion.runtime.errors import ConfigError
from pillion.runtime.paths import usable

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
    """A descriptor that appends to the log. A log that has grown large is kept as <name>.1 first.

    Raises ConfigError if the system refuses it.
    """
    with usable(path):
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


def copy_new(log: BinaryIO, out: BinaryIO) -> None:
    """Copies what has been appended since the last call."""
    while data := log.read(_COPY_BYTES):
        out.write(data)
        out.flush()


class LogFollower:
    """Copies what is appended to a log to a stream, in a thread: a blocked terminal holds up nobody else.

    Looking ten times a second is cheaper to own than inotify and costs about a thousandth of a core.
    """

    def __init__(self, path: Path, offset: int, out: BinaryIO) -> None:
        self._path = path
        self._offset = offset
        self._out = out
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log follower", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Copies the rest, unless the stream takes longer than the timeout."""
        self._closing.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        # An error means that the terminal or pipe is gone; the log itself is in the file.
        with contextlib.suppress(OSError), self._path.open("rb") as log:
            log.seek(self._offset)
            while not self._closing.wait(FOLLOW_INTERVAL_S):
                copy_new(log, self._out)
            copy_new(log, self._out)
