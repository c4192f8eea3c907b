"""A first compilation in a copy of the process: what takes too long or too much memory ends there."""

import os
import resource
import signal
from pathlib import Path
from typing import Final

from pillion.actors.detokenizer.grammars.engine import GrammarEngine, GrammarError
from pillion.actors.detokenizer.grammars.source import GrammarSource
from pillion.runtime.clock import NS_PER_MS, now_ns

CPU_LIMIT_S: Final = 0.6
WALL_LIMIT_S: Final = 3
EXTRA_MEMORY_BYTES: Final = 512 * 1024 * 1024
TOO_MUCH: Final = (
    f"compiling it takes more than {CPU_LIMIT_S:g} s or {EXTRA_MEMORY_BYTES // 2**20} MiB"
)
_MAX_RESULT_BYTES: Final = 8192
_WORKED: Final = b"+"


class CompileProbe:
    """One compilation. `fileno` becomes readable when it has ended."""

    def __init__(self, engine: GrammarEngine, source: GrammarSource, close_fd: int) -> None:
        """Starts it. `close_fd` stays with this process: its end must not wait for the copy's."""
        self.source = source
        self.deadline_ns = now_ns() + int(WALL_LIMIT_S * 1000 * NS_PER_MS)
        self._result_fd, write_fd = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(close_fd)
            _compile(engine, source, write_fd)
        os.close(write_fd)

    def fileno(self) -> int:
        """For a selector."""
        return self._result_fd

    def result(self) -> str | None:
        """Why the grammar does not work; None: it does. Ends the copy if it still runs."""
        os.set_blocking(self._result_fd, False)
        try:
            said = os.read(self._result_fd, _MAX_RESULT_BYTES)
        except BlockingIOError:
            said = b""
        os.close(self._result_fd)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        if said == _WORKED:
            return None
        return said.decode("utf-8", "replace") or TOO_MUCH


def _compile(engine: GrammarEngine, source: GrammarSource, write_fd: int) -> None:
    """In the copy: says how it went and ends."""
    said = b""
    try:
        for signal_number in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(signal_number, signal.SIG_DFL)
        signal.alarm(WALL_LIMIT_S)  # also when nobody is there any more
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = used + EXTRA_MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # A failed allocation aborts; that is expected here and nothing for the log.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        engine.check(source)
        said = _WORKED
    except GrammarError as error:
        said = str(error).encode("utf-8", "replace")[:_MAX_RESULT_BYTES]
    except BaseException as error:
        if not isinstance(error, MemoryError):
            said = f"compiling it failed: {error}".encode("utf-8", "replace")[:_MAX_RESULT_BYTES]
    finally:
        os.write(write_fd, said)
        os._exit(0)
