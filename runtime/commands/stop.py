"""`pillion stop`: ends a daemon and waits until nothing of it is left."""

import argparse
import contextlib
import time
from typing import Final

from pillion.messages.control import StopRequest
from pillion.runtime.control_socket import ControlClient
from pillion.runtime.errors import PillionError
from pillion.runtime.paths import daemon_pid, run_dir

# A daemon gives up on processes that nothing can end after a few seconds; this only guards against itself.
PATIENCE_S: Final = 60.0
_LOOK_AGAIN_S: Final = 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which daemon, and how patient to be with its open requests."""
    parser.add_argument("--name", default="default", help="name of the daemon (default: default)")
    parser.add_argument("--now", action="store_true", help="end open requests with an error")
    parser.add_argument(
        "--drain-s",
        type=float,
        metavar="SECONDS",
        help="time that open requests get (default: the daemon's drain_s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Asks the launcher to stop and waits for the end of every process of the daemon."""
    directory = run_dir(arguments.name)
    drain_s = 0.0 if arguments.now else arguments.drain_s
    with contextlib.closing(ControlClient(directory)) as client:
        client.ask(StopRequest(drain_s=drain_s))
        # The daemon bounds its own drain; a drain longer than that of a whole day is nobody's wish.
        client.wait_hang_up(timeout_s=24 * 3600.0)
    deadline = time.monotonic() + PATIENCE_S
    while (pid := daemon_pid(directory)) is not None:
        if time.monotonic() > deadline:
            raise PillionError(
                f"the daemon {arguments.name!r} (pid {pid}) has not ended: see pillion logs"
            )
        time.sleep(_LOOK_AGAIN_S)
    print(f"the daemon {arguments.name!r} has stopped")
    return 0
