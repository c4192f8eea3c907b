"""`pillion logs`: shows what a daemon has said, also after its end."""

import argparse
import sys
import time

from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.log import FOLLOW_INTERVAL_S, copy_new, tail_offset
from pillion.runtime.paths import daemon_pid, run_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which daemon, how many lines, and whether to go on."""
    parser.add_argument("--name", default="default", help="name of the daemon (default: default)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the daemon ends")
    parser.add_argument(
        "-n", "--lines", type=int, default=100, help="lines to begin with (default: 100)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Copies the log to standard output."""
    directory = run_dir(arguments.name)
    if not directory.log.exists():
        raise DaemonUnavailable(
            f"no daemon named {arguments.name!r} has run (looked in {directory.root})"
        )
    offset = tail_offset(directory.log, max(0, arguments.lines))
    with directory.log.open("rb") as log:
        log.seek(offset)
        copy_new(log, sys.stdout.buffer)
        while arguments.follow and daemon_pid(directory) is not None:
            time.sleep(FOLLOW_INTERVAL_S)
            copy_new(log, sys.stdout.buffer)
    return 0
