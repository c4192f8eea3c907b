"""Starts, asks, stops and ends the processes that are compared."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from peers.engines import ENVIRONMENTS

END_DEADLINE_S = 8.0


class ProcessFailed(Exception):
    """An engine ended, or did not answer in time."""


class Group:
    """A process in a session of its own, with all that it starts there."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        site: str | None,
        log: Path,
        *,
        cwd: Path | None = None,
        stdin: int = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.log = log
        self.started = time.monotonic()
        environment = dict(os.environ, PYTHONUNBUFFERED="1", TOKENIZERS_PARALLELISM="false")
        environment |= ENVIRONMENTS.get(name.partition(" ")[0], {})
        # Engines that start together must not write to one cache of compiled code.
        environment["VLLM_CACHE_ROOT"] = str(log.with_suffix(".cache"))
        if site is not None:
            environment["PYTHONPATH"] = site
            # Kernels that were made ahead lie beside the packages.
            if (made := Path(site) / ".jit").is_dir():
                environment["TVM_FFI_CACHE_DIR"] = str(made)
        with log.open("a") as output:
            self.process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=cwd,
                pass_fds=pass_fds,
                start_new_session=True,
            )

    def tail(self, num_lines: int = 15) -> str:
        """The end of what it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-num_lines:])

    def freeze(self) -> None:
        """Keeps its memory, takes no processor time: some engines spin while they wait."""
        self.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Ends the whole group."""
        end_all([self])

    def is_gone(self) -> bool:
        """Whether none of the group's processes is left."""
        self.process.poll()
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def kill(self) -> None:
        """Ends at once what is left of the group."""
        self.send_signal(signal.SIGKILL)
        self.process.wait()

    def send_signal(self, number: int) -> None:
        """To the whole group, if anything is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class EngineProcess(Group):
    """An engine behind peers/child.py."""

    def __init__(self, name: str, command: Sequence[str], site: str | None, log: Path) -> None:
        reading, writing = os.pipe()
        super().__init__(
            name,
            [*command, "--answers", str(writing)],
            site,
            log,
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.PIPE,
            pass_fds=[writing],
        )
        os.close(writing)
        assert self.process.stdin is not None
        self._requests: IO[bytes] = self.process.stdin
        self._answers: int | None = reading
        self._pending = b""

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Sends a request and waits for its answer. Raises ProcessFailed."""
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
        except (BrokenPipeError, ValueError) as error:
            raise ProcessFailed(f"{self.name} has ended: {self.tail()}") from error
        return self.read(timeout_s)

    def kill(self) -> None:
        """Also closes the pipes."""
        super().kill()
        if self._answers is None:
            return
        os.close(self._answers)
        self._answers = None
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()

    def read(self, timeout_s: float) -> dict[str, Any]:
        """The next answer. Raises ProcessFailed."""
        if self._answers is None:
            raise ProcessFailed(f"{self.name} was ended")
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._answers], [], [], left)[0]:
                # Its answer would be taken for that of the next request.
                self.end()
                raise ProcessFailed(f"{self.name} did not answer within {timeout_s:.0f} s")
            data = os.read(self._answers, 1 << 16)
            if not data:
                raise ProcessFailed(f"{self.name} has ended: {self.tail()}")
            self._pending += data
        line, self._pending = self._pending.split(b"\n", 1)
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise ProcessFailed(f"{self.name}: {found['error']}")
        return found


def end_all(groups: Sequence[Group], deadline_s: float = END_DEADLINE_S) -> None:
    """Ends all of them together: politely, then by force."""
    for group in groups:
        group.send_signal(signal.SIGTERM)
        group.thaw()
    deadline = time.monotonic() + deadline_s
    while not all(group.is_gone() for group in groups) and time.monotonic() < deadline:
        time.sleep(0.05)
    for group in groups:
        group.kill()


@contextlib.contextmanager
def only(measured: Group, everyone: Sequence[Group]) -> Iterator[None]:
    """While one is measured, all others stand still."""
    others = [group for group in everyone if group is not measured]
    for group in others:
        group.freeze()
    measured.thaw()
    try:
        yield
    finally:
        for group in others:
            group.thaw()
