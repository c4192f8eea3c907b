"""Orphans: pid 1 of a container inherits them, and nobody else waits for those that end."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Container, Iterator
from typing import Final

from pillion.runtime.proc_files import children_of, is_zombie

INIT_PID: Final = 1


@contextlib.contextmanager
def waiting_for_orphans(own: Callable[[], Container[int]]) -> Iterator[None]:
    """Within a running loop, and if this process is pid 1: takes the exit status of whoever ends.

    `own` gives the children that the caller started and waits for itself.
    """
    if os.getpid() != INIT_PID:
        yield
        return
    loop = asyncio.get_running_loop()
    # uvloop's own add_signal_handler refuses this signal.
    before = signal.signal(
        signal.SIGCHLD, lambda *_: loop.call_soon_threadsafe(lambda: _wait(own()))
    )
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


def _wait(own: Container[int]) -> None:
    for pid in children_of(os.getpid()):
        if pid not in own and is_zombie(pid):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
