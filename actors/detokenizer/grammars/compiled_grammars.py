"""Compiled grammars, kept for the next request that brings the same."""

import resource
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

import llguidance

from pillion.actors.detokenizer.grammars.calls import GrammarCompiled
from pillion.actors.detokenizer.grammars.compile_probe import CompileProbe
from pillion.actors.detokenizer.grammars.engine import GrammarEngine, GrammarError
from pillion.actors.detokenizer.grammars.source import GrammarSource
from pillion.messages.ids import RequestId

MAX_CACHED: Final = 64
# Grammars learn as they are used. Above this much resident memory all are forgotten, and compiled when asked for.
FORGET_ABOVE_BYTES: Final = 512 * 1024 * 1024


class CompiledGrammars:
    """One new grammar at a time is compiled in a copy of this process, and if that works, on a thread here.

    So masks are filled meanwhile, and what takes too long is over when its copy is. The process is never
    copied while the thread runs.
    """

    def __init__(self, engine: GrammarEngine, private_fd: int, wake: Callable[[], None]) -> None:
        """`wake` is called on the thread when it has ended; `private_fd` is closed in copies."""
        self.probe: CompileProbe | None = None
        self._engine = engine
        self._private_fd = private_fd
        self._wake = wake
        self._compiled: OrderedDict[GrammarSource, llguidance.LLMatcher] = OrderedDict()
        self._waiting: OrderedDict[GrammarSource, list[RequestId]] = OrderedDict()
        self._on_thread: GrammarSource | None = None
        self._thread_results: list[llguidance.LLMatcher | GrammarError] = []

    def get(self, source: GrammarSource) -> llguidance.LLMatcher:
        """A grammar that has worked once. Raises GrammarError if it does not now."""
        found = self._compiled.get(source)
        if found is None:
            found = self._engine.compile(source)
            self._keep(source, found)
        self._compiled.move_to_end(source)
        return found

    def ask(self, request_id: RequestId, source: GrammarSource) -> list[GrammarCompiled]:
        """Compiles a grammar for a request, now or as soon as its turn comes."""
        if source in self._compiled:
            return [GrammarCompiled(request_id=request_id)]
        self._waiting.setdefault(source, []).append(request_id)
        self._start_next()
        return []

    def on_probe(self) -> list[GrammarCompiled]:
        """The copy has ended, or its time has."""
        probe, self.probe = self.probe, None
        if probe is None:
            return []
        error = probe.result()
        if error is not None:
            return self._answer(probe.source, error)
        self._on_thread = probe.source
        threading.Thread(target=self._compile, args=(probe.source,), daemon=True).start()
        return []

    def on_thread(self) -> list[GrammarCompiled]:
        """The thread has said `wake`."""
        source, self._on_thread = self._on_thread, None
        if source is None:
            return []
        result = self._thread_results.pop()
        if isinstance(result, GrammarError):
            return self._answer(source, str(result))
        self._keep(source, result)
        return self._answer(source, None)

    def _start_next(self) -> None:
        if self.probe is None and self._on_thread is None and self._waiting:
            self.probe = CompileProbe(self._engine, next(iter(self._waiting)), self._private_fd)

    def _compile(self, source: GrammarSource) -> None:
        try:
            self._thread_results.append(self._engine.compile(source))
        except GrammarError as error:
            self._thread_results.append(error)
        self._wake()

    def _keep(self, source: GrammarSource, compiled: llguidance.LLMatcher) -> None:
        if _resident_bytes() > FORGET_ABOVE_BYTES:
            self._compiled.clear()
        self._compiled[source] = compiled
        while len(self._compiled) > MAX_CACHED:
            self._compiled.popitem(last=False)

    def _answer(self, source: GrammarSource, error: str | None) -> list[GrammarCompiled]:
        request_ids = self._waiting.pop(source)
        self._start_next()
        return [GrammarCompiled(request_id=each, error=error) for each in request_ids]


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
