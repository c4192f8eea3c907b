"""How an actor's process begins: its command line, and the first thing that it does."""

import argparse
import faulthandler
import fcntl
import logging
import os
import signal
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import msgspec

import pillion
from pillion.runtime.config import EngineConfig, from_json
from pillion.runtime.log import start_logging
from pillion.runtime.paths import RunDir
from pillion.runtime.process_faults import ProcessFaults
from pillion.runtime.progress import Progress
from pillion.runtime.service_variables import without_service_variables


@dataclass(frozen=True, slots=True)
class ActorContext:
    """What an actor knows about itself from the start."""

    name: str
    epoch: int  # 1 for the first life, one more for each restart
    config: EngineConfig
    run_dir: RunDir
    faults: ProcessFaults
    peer_epochs: Mapping[str, int] = field(default_factory=dict)  # of those not in their first life
    progress: Progress = field(default_factory=Progress.private)
    listening_fds: tuple[int, ...] = ()  # sockets on which this life is to accept connections


def actor_arguments(
    run_dir: RunDir,
    epoch: int,
    lifetime_fd: int,
    lock_fd: int,
    peer_epochs: Mapping[str, int] | None = None,
    progress_line: tuple[int, int] | None = None,
    listening_fds: Sequence[int] = (),
) -> list[str]:
    """The arguments that `enter` reads; all descriptors must be inherited under these numbers.

    `progress_line` is the descriptor of a ProgressPage and the actor's line in it.
    """
    arguments = [] if progress_line is None else ["--progress-line={}:{}".format(*progress_line)]
    return [
        *arguments,
        *(f"--listening-fd={descriptor}" for descriptor in listening_fds),
        run_dir.argument,
        f"--epoch={epoch}",
        f"--lifetime-fd={lifetime_fd}",
        f"--lock-fd={lock_fd}",
        f"--peer-epochs={msgspec.json.encode(peer_epochs or {}).decode()}",
    ]


def child_environment() -> dict[str, str]:
    """The environment of a child, which must import the same pillion as this process."""
    environment = without_service_variables(os.environ)
    home = str(Path(pillion.__file__).absolute().parent.parent)
    # An installed package is found anyway, and site-packages must not come before the standard library.
    if home not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        earlier = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = home + (os.pathsep + earlier if earlier else "")
    return environment


def enter(name: str, argv: Sequence[str] | None = None) -> ActorContext:
    """The first call of every actor's main(), before any heavy import.

    From here on the process ends with its launcher, ignores SIGINT and SIGTERM (the launcher stops actors
    by message), logs to the daemon's log and reports an uncaught exception as ActorFailed.
    """
    parser = argparse.ArgumentParser(prog=name)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--lifetime-fd", type=int, required=True)
    parser.add_argument("--lock-fd", type=int, required=True)
    parser.add_argument("--peer-epochs", required=True)
    parser.add_argument("--progress-line")
    parser.add_argument("--listening-fd", type=int, action="append", default=[])
    parser.add_argument("--name", default=name, help="if several actors run this program")
    options = parser.parse_args(argv)
    # Grandchildren must keep neither the daemon's lock nor its sockets.
    for descriptor in (options.lock_fd, *options.listening_fd):
        os.set_inheritable(descriptor, False)
    end_with_launcher(options.lifetime_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start_logging(options.name)
    faulthandler.enable()  # a crash in native code shows where in the log
    run_dir = RunDir(options.run_dir)
    config = from_json(run_dir.config.read_bytes())
    context = ActorContext(
        name=options.name,
        epoch=options.epoch,
        config=config,
        run_dir=run_dir,
        peer_epochs=msgspec.json.decode(options.peer_epochs, type=dict[str, int]),
        faults=ProcessFaults(config, options.name, options.epoch),
        progress=_open_progress(options.progress_line),
        listening_fds=tuple(options.listening_fd),
    )
    _report_uncaught(context)
    context.faults.at_start()
    return context


def _open_progress(argument: str | None) -> Progress:
    if argument is None:
        return Progress.private()
    descriptor, line = map(int, argument.split(":"))
    return Progress.open(descriptor, line)


def end_with_launcher(lifetime_fd: int) -> None:
    """Has the kernel kill this process as soon as every copy of the pipe's other end is closed.

    If it leads a process group, as an actor does, its children end with it. Nothing of this process needs to run for
    it: one that is stopped or spins ends too. And it's bound to the launcher's process, where PR_SET_PDEATHSIG is
    bound to the thread in which the launcher happened to start us.
    """
    # The owner of a description's signal is one for all who inherited it, so this process opens its own.
    watch = os.open(f"/proc/self/fd/{lifetime_fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.close(lifetime_fd)
    pid = os.getpid()
    fcntl.fcntl(watch, fcntl.F_SETOWN, -pid if os.getpgrp() == pid else pid)
    fcntl.fcntl(watch, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(watch, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    try:
        os.read(watch, 1)
    except BlockingIOError:
        return  # it lives, and the kernel tells of its end from now on
    os.kill(pid, signal.SIGKILL)


def _report_uncaught(context: ActorContext) -> None:
    def report(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        from pillion.runtime.actor import report_failure

        if isinstance(error, Exception):
            report_failure(context, error)
        else:
            logging.getLogger(__name__).error("ended by %s", kind.__name__)

    sys.excepthook = report
