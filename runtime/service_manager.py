"""What the launcher tells the service manager that started it: ready, how it does, alive, stopping."""

import logging
import socket
from collections.abc import Mapping
from typing import Final

from pillion.runtime.errors import ConfigError

logger = logging.getLogger(__name__)

SEND_TIMEOUT_S: Final = 0.2  # the launcher's loop waits for a full socket no longer than this
BEATS_PER_LIMIT: Final = 2
_US_PER_S: Final = 1_000_000


class ServiceManager:
    """Speaks the protocol of sd_notify(3). Without NOTIFY_SOCKET it does nothing."""

    def __init__(
        self, address: str | None = None, watchdog_interval_s: float | None = None
    ) -> None:
        self._address = address
        # How often `alive` is due; None if nobody counts on it.
        self.watchdog_interval_s = None if address is None else watchdog_interval_s

    @classmethod
    def of(cls, environment: Mapping[str, str], pid: int) -> "ServiceManager":
        """The one that has started the process `pid` with this environment. Raises ConfigError."""
        address = environment.get("NOTIFY_SOCKET") or None
        if address is not None and address[0] not in "/@":
            raise ConfigError(
                f"NOTIFY_SOCKET must be an absolute path or @NAME, got {address!r:.80}: unset it"
            )
        return cls(address, _watchdog_interval_s(environment, pid))

    def ready(self) -> None:
        """Requests are served from now on."""
        self._send("READY=1")

    def status(self, status: str) -> None:
        """How the daemon does, for a person to read."""
        self._send(f"STATUS={_one_line(status)}")

    def starting(self, status: str, within_s: float) -> None:
        """It will be ready, or say that it has failed, within this time."""
        self._send(f"STATUS={_one_line(status)}", _extension(within_s))

    def stopping(self, status: str, within_s: float) -> None:
        """The end has begun and takes no longer than this."""
        self._send("STOPPING=1", f"STATUS={_one_line(status)}", _extension(within_s))

    def alive(self) -> None:
        """A sign of life, due every `watchdog_interval_s`."""
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        # A leading "@" stands for the zero byte with which abstract names begin.
        name = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(SEND_TIMEOUT_S)
            try:
                sender.sendto("\n".join(lines).encode(), name)
            except OSError as error:
                # The daemon serves whether or not somebody is told.
                logger.warning("cannot tell the service manager %s: %s", lines[0], error)


def _watchdog_interval_s(environment: Mapping[str, str], pid: int) -> float | None:
    limit = environment.get("WATCHDOG_USEC")
    if not limit or environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    if not (limit.isascii() and limit.isdigit() and int(limit) > 0):
        raise ConfigError(
            f"WATCHDOG_USEC must be a number of microseconds above 0, got {limit!r:.80}"
        )
    return int(limit) / _US_PER_S / BEATS_PER_LIMIT


def _extension(seconds: float) -> str:
    """Has the manager wait so long from now, should its own limit come sooner."""
    return f"EXTEND_TIMEOUT_USEC={int(seconds * _US_PER_S)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
