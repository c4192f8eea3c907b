"""The text edge's grammar process, started with the first grammar: compiles, follows, fills masks.

`python -m pillion.actors.detokenizer.grammars.process FD` serves one edge over the socket FD and ends with it.
Work on grammars may be slow or fail in native code; here it holds up or ends nothing but itself.
"""

import os
import resource
import selectors
import signal
import socket
import sys
from typing import Final, assert_never

from pillion.actors.detokenizer.grammars.calls import (
    CALLS,
    AdvanceGrammar,
    CloseGrammar,
    CompileGrammar,
    GrammarCall,
    GrammarReply,
    OpenGrammar,
    SetVocabulary,
    TokenMask,
    encode_frame,
)
from pillion.actors.detokenizer.grammars.compile_probe import CompileProbe
from pillion.actors.detokenizer.grammars.compiled_grammars import CompiledGrammars
from pillion.actors.detokenizer.grammars.engine import GrammarEngine, GrammarError, Matcher
from pillion.messages.ids import ErrorCode, SequenceId
from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.frame_buffer import FrameBuffer

# Address space: an allocation beyond it aborts, and the edge starts another process.
MEMORY_LIMIT_BYTES: Final = 3 * 1024 * 1024 * 1024
_RECEIVE_BYTES: Final = 1 << 20


class GrammarServer:
    """What the process does with each call."""

    def __init__(self, private_fd: int) -> None:
        self.grammars: CompiledGrammars | None = None
        self.wake_fd, self._wake_write_fd = os.pipe()
        self._private_fd = private_fd
        self._engine: GrammarEngine | None = None
        self._matchers: dict[SequenceId, Matcher] = {}

    def on_call(self, call: GrammarCall) -> list[GrammarReply]:
        """Takes one call; returns what can be said at once."""
        if isinstance(call, SetVocabulary):
            self._engine = GrammarEngine(call.tokens, call.special_ids)
            self.grammars = CompiledGrammars(self._engine, self._private_fd, self._wake)
            return []
        if self._engine is None or self.grammars is None:
            raise ValueError(f"{type(call).__name__} before the vocabulary")
        match call:
            case CompileGrammar():
                return [*self.grammars.ask(call.request_id, call.source)]
            case OpenGrammar():
                return [self._open(call, self._engine, self.grammars)]
            case AdvanceGrammar():
                matcher = self._matchers.get(call.sequence_id)
                return [] if matcher is None else [self._follow(call, matcher)]
            case CloseGrammar():
                self._matchers.pop(call.sequence_id, None)
                return []
            case _:
                assert_never(call)

    def on_wake(self) -> list[GrammarReply]:
        """The wake pipe has something."""
        os.read(self.wake_fd, 1)
        return [] if self.grammars is None else [*self.grammars.on_thread()]

    def on_probe(self) -> list[GrammarReply]:
        """The probe has ended, or its time has."""
        return [] if self.grammars is None else [*self.grammars.on_probe()]

    def _open(
        self, call: OpenGrammar, engine: GrammarEngine, grammars: CompiledGrammars
    ) -> TokenMask:
        try:
            matcher = engine.start(grammars.get(call.source), call.end_ids, call.opening_ids)
        except GrammarError as error:
            return TokenMask(
                sequence_id=call.sequence_id,
                num_tokens=0,
                error=str(error),
                error_code=error.code,
            )
        self._matchers[call.sequence_id] = matcher
        return self._follow(call, matcher)

    def _follow(self, call: OpenGrammar | AdvanceGrammar, matcher: Matcher) -> TokenMask:
        mask, error = b"", None
        code: ErrorCode = "invalid_request"
        try:
            matcher.advance(call.token_ids)
            if not matcher.is_complete:
                mask = matcher.mask()
        except GrammarError as failure:
            error, code = str(failure), failure.code
        return TokenMask(
            sequence_id=call.sequence_id,
            num_tokens=matcher.num_tokens,
            mask=mask,
            is_complete=error is None and matcher.is_complete,
            error=error,
            error_code=code,
        )

    def _wake(self) -> None:
        os.write(self._wake_write_fd, b"\0")


def serve(edge: socket.socket) -> None:
    """Answers calls until the edge is gone."""
    server = GrammarServer(edge.fileno())
    frames = FrameBuffer()
    with selectors.DefaultSelector() as selector:
        selector.register(edge, selectors.EVENT_READ)
        selector.register(server.wake_fd, selectors.EVENT_READ)
        watched: CompileProbe | None = None
        while True:
            probe = None if server.grammars is None else server.grammars.probe
            if probe is not watched and probe is not None:
                selector.register(probe, selectors.EVENT_READ)
            watched = probe
            ready = [key.fileobj for key, _ in selector.select(_timeout_s(probe))]
            replies: list[GrammarReply] = []
            if edge in ready:
                data = edge.recv(_RECEIVE_BYTES)
                if not data:
                    return
                for payload in frames.feed(data):
                    for call in CALLS.decode(payload):
                        replies += server.on_call(call)
            if server.wake_fd in ready:
                replies += server.on_wake()
            if probe is not None and (probe in ready or now_ns() >= probe.deadline_ns):
                selector.unregister(probe)
                replies += server.on_probe()
            if replies:
                edge.sendall(encode_frame(replies))


def _timeout_s(probe: CompileProbe | None) -> float | None:
    return None if probe is None else max(probe.deadline_ns - now_ns(), 0) / NS_PER_S


def main() -> int:
    """Serves the edge whose socket is named on the command line."""
    # The edge ends this process, by hanging up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    edge = socket.socket(fileno=int(sys.argv[1]))
    try:
        serve(edge)
    except ConnectionError:
        pass
    os._exit(0)  # without waiting for a thread that may still compile


if __name__ == "__main__":
    sys.exit(main())
