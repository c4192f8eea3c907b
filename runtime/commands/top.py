"""`pillion top`: a daemon's actors, live in a terminal."""

import argparse
import importlib.util
import sys

from pillion.messages.control import DaemonStatus, StatusRequest
from pillion.runtime.control_socket import ControlClient
from pillion.runtime.errors import ConfigError, PillionError
from pillion.runtime.live_view import LiveView, live_view
from pillion.runtime.paths import RunDir, run_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which daemon."""
    parser.add_argument("--name", default="default", help="name of the daemon (default: default)")


def run(arguments: argparse.Namespace) -> int:
    """Shows the daemon until the user has seen enough."""
    directory = run_dir(arguments.name)
    if importlib.util.find_spec("textual") is None:
        raise ConfigError("pillion top needs textual: run pip install 'pillion[top]'")
    ask_live_view(directory)  # one that does not run is told of at once
    if not sys.stdout.isatty():
        raise ConfigError("pillion top draws on a terminal; `pillion status` prints the same once")
    from pillion.runtime.top_app import TopApp

    TopApp(lambda: ask_live_view(directory)).run()
    return 0


def ask_live_view(directory: RunDir) -> LiveView:
    """The daemon at this moment. Raises DaemonUnavailable and PillionError."""
    client = ControlClient(directory)
    try:
        status = client.ask(StatusRequest())
    finally:
        client.close()
    if not isinstance(status, DaemonStatus):
        raise PillionError(f"the daemon answers with {type(status).__name__}")
    return live_view(status)
