"""The one line that a launcher tells the process which started it."""

import os

import msgspec

from pillion.runtime.errors import PillionError


class LaunchOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether the daemon came up, and if not, why."""

    ready: bool
    error: str | None = None
    refused: bool = False  # nothing was started, and the log says nothing of it


class LaunchRefused(PillionError):
    """A launcher has started nothing."""


class LaunchReport:
    """Writes the outcome to an inherited pipe, once, and closes it. Without a pipe it does nothing."""

    def __init__(self, ready_fd: int | None) -> None:
        self._ready_fd = ready_fd

    def ready(self) -> None:
        """Requests are served from now on."""
        self._write(LaunchOutcome(ready=True))

    def failed(self, error: str) -> None:
        """The daemon will not come up, or it is the end of one that did (then nobody listens)."""
        self._write(LaunchOutcome(ready=False, error=error))

    def refused(self, error: str) -> None:
        """Nothing has been started."""
        self._write(LaunchOutcome(ready=False, error=error, refused=True))

    def _write(self, outcome: LaunchOutcome) -> None:
        if self._ready_fd is None:
            return
        ready_fd, self._ready_fd = self._ready_fd, None
        try:
            os.write(ready_fd, msgspec.json.encode(outcome) + b"\n")
        except BrokenPipeError:
            pass  # who started us no longer wants to know
        os.close(ready_fd)
