"""How a daemon begins: here in the foreground, or as a process of its own."""

import argparse
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import msgspec

from pillion.runtime.config import EngineConfig, from_json
from pillion.runtime.errors import PillionError
from pillion.runtime.http_settings import read_api_keys, require_http_packages
from pillion.runtime.http_sockets import HttpSockets, http_sockets
from pillion.runtime.inherited_sockets import inherited_sockets
from pillion.runtime.launch_report import LaunchOutcome, LaunchRefused, LaunchReport
from pillion.runtime.log import LogFollower, open_log, start_logging
from pillion.runtime.open_files import allow_open_files
from pillion.runtime.paths import DaemonLock, RunDir, run_dir
from pillion.runtime.process import child_environment
from pillion.runtime.service_manager import ServiceManager
from pillion.runtime.tracing_settings import with_tracing

if TYPE_CHECKING:
    from pillion.runtime.supervision import ActorSpec

STOP_DEADLINE_S: Final = 10.0
TERMINAL_DEADLINE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How a launcher is tied to the process that starts it."""

    foreground: bool = False  # show the log on standard error too
    ready_fd: int | None = None  # gets one LaunchOutcome as a line of JSON
    # The reading end of a pipe: when its other end closes, the daemon stops at once and leaves no directory.
    lifetime_fd: int | None = None
    service: ServiceManager = field(default_factory=ServiceManager)
    listening_fds: tuple[int, ...] = ()  # sockets that the gateway is to serve


def locate_model(config: EngineConfig, *, progress: bool) -> EngineConfig:
    """The configuration with the model's place on this machine and the name that clients see.

    Fetches the model if need be. Raises ModelError.
    """
    # The launcher's own process does not need what finds and fetches models.
    from pillion.runtime.model_source import resolve_model

    source = resolve_model(config.model, progress=progress)
    return msgspec.structs.replace(
        config,
        model_path=str(source.path),
        served_model_name=config.served_model_name or source.name,
    )


def launch(
    config: EngineConfig, options: LaunchOptions, specs: "Sequence[ActorSpec] | None" = None
) -> int:
    """Runs a daemon in this process until it ends. Returns the exit status.

    Raises ConfigError before anything is started if the name is taken or the run directory is unusable.
    """
    report = LaunchReport(options.ready_fd)
    begun = False
    try:
        options = _tied_to_service_manager(options)
        if config.serves_http or options.listening_fds:
            require_http_packages()
            if config.api_key_file is not None:
                read_api_keys(config.api_key_file)
        else:
            config.refuse_http_settings()
        allow_open_files(config.http_gateways)
        directory = run_dir(config.name)
        directory.create()
        lock = DaemonLock.acquire(directory)
        try:
            directory.remove_sockets()
            with http_sockets(config) as http, _output_to_log(directory, options.foreground):
                begun = True
                status = _run_launcher(config, directory, lock, options, report, http, specs)
            directory.remove_sockets()
            if options.lifetime_fd is not None and status == 0:
                directory.remove()
        finally:
            lock.release()
    except Exception as error:
        told = isinstance(error, PillionError)
        tell = report.failed if begun else report.refused
        tell(str(error) if told else f"{type(error).__name__}: {error}")
        raise
    return status


def _tied_to_service_manager(options: LaunchOptions) -> LaunchOptions:
    """The options with what the environment says to this process. Raises ConfigError."""
    pid = os.getpid()
    return replace(
        options,
        service=ServiceManager.of(os.environ, pid),
        listening_fds=inherited_sockets(os.environ, pid),
    )


def _run_launcher(
    config: EngineConfig,
    directory: RunDir,
    lock: DaemonLock,
    options: LaunchOptions,
    report: LaunchReport,
    http: HttpSockets,
    specs: "Sequence[ActorSpec] | None",
) -> int:
    import uvloop

    from pillion.runtime.launcher import Launcher
    from pillion.runtime.supervision import ACTORS, with_gateways

    start_logging("launcher")
    config = with_tracing(config, os.environ)
    directory.write_config(config.to_json())
    table = with_gateways(specs or ACTORS, config, (*http.descriptors, *options.listening_fds))

    async def run() -> int:
        launcher = Launcher(
            config, directory, table, lock.descriptor, report, options.service, http
        )
        return await launcher.run(options.lifetime_fd)

    return uvloop.run(run())


@contextlib.contextmanager
def _output_to_log(directory: RunDir, foreground: bool) -> Iterator[None]:
    """Standard output and error of this process and its children go to the log file.

    In the foreground a thread shows the file on what was standard error: then no actor ever waits for a
    terminal that has stopped.
    """
    log_fd = open_log(directory.log)
    offset = os.fstat(log_fd).st_size
    sys.stdout.flush()
    sys.stderr.flush()
    saved = (os.dup(1), os.dup(2))
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(log_fd)
    follower = None
    if foreground:
        follower = LogFollower(directory.log, offset, os.fdopen(saved[1], "wb", 0, closefd=False))
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if follower is not None:
            follower.close(TERMINAL_DEADLINE_S)
        for number, original in zip((1, 2), saved, strict=True):
            os.dup2(original, number)
            os.close(original)


class DaemonProcess:
    """A daemon that this process has started."""

    def __init__(
        self,
        directory: RunDir,
        process: subprocess.Popen[bytes],
        ready_fd: int,
        lifetime_fd: int | None,
    ) -> None:
        self.directory = directory
        self.pid = process.pid
        self._process = process
        self._ready_fd = ready_fd
        self._lifetime_fd = lifetime_fd

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Waits until requests are served.

        Raises PillionError with the first cause if that fails, LaunchRefused before anything was started.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        ready = select.poll()  # select() itself refuses descriptors from 1024 up
        ready.register(self._ready_fd, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            left_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            if not ready.poll(left_ms):
                raise PillionError(
                    f"the daemon {self.directory.root.name!r} is not ready after {timeout_s:g} s"
                )
            data = os.read(self._ready_fd, 4096)
            if not data:
                raise PillionError(f"the launcher ended without a word: see {self.directory.log}")
            line += data
        outcome = msgspec.json.decode(line, type=LaunchOutcome)
        if not outcome.ready:
            kind = LaunchRefused if outcome.refused else PillionError
            raise kind(outcome.error or "the daemon did not start")

    def stop(self) -> None:
        """Ends the daemon at once, open requests with an error, and waits until it is gone."""
        if self._lifetime_fd is not None:
            os.close(self._lifetime_fd)
            self._lifetime_fd = None
        else:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its actors end with it
            self._process.wait()

    def abandon_after_fork(self) -> None:
        """In a forked child: the daemon is the parent's and must end with the parent alone."""
        if self._lifetime_fd is not None:
            os.close(self._lifetime_fd)
            self._lifetime_fd = None

    def close(self) -> None:
        """Lets go of a daemon that lives on by itself."""
        os.close(self._ready_fd)


def start_daemon(config: EngineConfig, *, private: bool = False) -> DaemonProcess:
    """Starts a launcher in a session of its own; the model must be located already (`locate_model`).

    A private daemon ends at once, and leaves no directory, when this process ends, however that happens.
    """
    ready_fd, launcher_ready_fd = os.pipe()
    command = [sys.executable, "-P", "-m", "pillion.runtime.daemon"]
    command += [f"--config={config.to_json().decode()}", f"--ready-fd={launcher_ready_fd}"]
    inherited = [launcher_ready_fd]
    our_lifetime_fd = None
    if private:
        lifetime_fd, our_lifetime_fd = os.pipe()
        command.append(f"--lifetime-fd={lifetime_fd}")
        inherited.append(lifetime_fd)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=inherited,
        env=child_environment(),
        start_new_session=True,
    )
    for descriptor in inherited:
        os.close(descriptor)
    return DaemonProcess(run_dir(config.name), process, ready_fd, our_lifetime_fd)


def main(argv: Sequence[str] | None = None, specs: "Sequence[ActorSpec] | None" = None) -> int:
    """The process that `start_daemon` starts."""
    parser = argparse.ArgumentParser(prog="pillion.runtime.daemon")
    parser.add_argument("--config", required=True)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--lifetime-fd", type=int)
    parser.add_argument("--foreground", action="store_true")
    arguments = parser.parse_args(argv)
    for descriptor in (arguments.ready_fd, arguments.lifetime_fd):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
    options = LaunchOptions(
        foreground=arguments.foreground,
        ready_fd=arguments.ready_fd,
        lifetime_fd=arguments.lifetime_fd,
    )
    try:
        return launch(from_json(arguments.config.encode()), options, specs)
    except PillionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
