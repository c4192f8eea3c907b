"""How long a client goes on trying for a connection: while there is a daemon, and not for ever."""

import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pillion.runtime.clock import NS_PER_S
from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.paths import RunDir

_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.25
# Of daemons that all refuse because they are ending the first is asked again only so much later.
REFUSED_PAUSE_S: Final = 0.25


class Patience:
    """Attempts to connect, with growing pauses between them."""

    def __init__(
        self, client_sockets: Sequence[Path], until_ns: int, *, outlive_daemon: bool = False
    ) -> None:
        """`outlive_daemon`: wait also while no daemon is there at all."""
        self._directories = [RunDir(path.parent) for path in client_sockets]
        self._until_ns = until_ns
        self._outlive_daemon = outlive_daemon
        self._pause_s = _FIRST_PAUSE_S

    def pause_s(self, error: DaemonUnavailable, now_ns: int) -> float:
        """Seconds to wait before the next attempt. Raises the error of the last one if none shall follow.

        The text edge of a daemon that lives comes back. Without a launcher nobody restarts it.
        """
        if not error.may_pass or now_ns >= self._until_ns:
            raise error
        if not (self._outlive_daemon or any(map(launcher_lives, self._directories))):
            raise error
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return min(pause_s, (self._until_ns - now_ns) / NS_PER_S)


def launcher_lives(directory: RunDir) -> bool:
    """Whether somebody listens at the control socket; answers at once, also if the launcher is stopped."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            error = probe.connect_ex(os.fsencode(directory.control_socket))
        except OSError:  # a name that no socket can have
            return False
        return error in (0, errno.EAGAIN)  # EAGAIN: its backlog is full
