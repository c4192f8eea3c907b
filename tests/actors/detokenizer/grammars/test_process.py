"""The grammar process as it really runs: limits on what it compiles, and its end with the edge."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pillion.actors.detokenizer.grammars.calls import (
    REPLIES,
    CompileGrammar,
    GrammarCall,
    GrammarReply,
    OpenGrammar,
    SetVocabulary,
    TokenMask,
    encode_frame,
)
from pillion.actors.detokenizer.grammars.compile_probe import TOO_MUCH
from pillion.actors.detokenizer.grammars.source import source_of
from pillion.messages.structured_outputs import StructuredOutputsParams
from pillion.runtime.frame_buffer import FrameBuffer
from pillion.runtime.process import child_environment

DEADLINE_S = 20.0
MAX_RESIDENT_BYTES = 80 * 1000 * 1000


class Process:
    """The process, and the edge's end of its socket."""

    def __init__(self) -> None:
        self.edge, theirs = socket.socketpair()
        self.edge.settimeout(DEADLINE_S)
        with theirs:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "pillion.actors.detokenizer.grammars.process"),
                    str(theirs.fileno()),
                ],
                pass_fds=(theirs.fileno(),),
                env=child_environment(),
            )
        self._frames = FrameBuffer()
        self._replies: list[GrammarReply] = []
        tokens = [bytes([byte]) for byte in range(256)] + [b"<end>"]
        self.send(SetVocabulary(tokens=tokens, special_ids=[256]))

    def send(self, *calls: GrammarCall) -> None:
        self.edge.sendall(encode_frame(calls))

    def reply(self) -> GrammarReply:
        while not self._replies:
            data = self.edge.recv(1 << 20)
            assert data, "the process has ended"
            for payload in self._frames.feed(data):
                self._replies += REPLIES.decode(payload)
        return self._replies.pop(0)

    def compile(self, request_id: int, structure: StructuredOutputsParams) -> None:
        self.send(CompileGrammar(request_id=request_id, source=source_of(structure)))

    def open(self, sequence_id: int, structure: StructuredOutputsParams) -> None:
        call = OpenGrammar(
            sequence_id=sequence_id,
            source=source_of(structure),
            token_ids=b"",
            end_ids=[256],
            opening_ids=[],
        )
        self.send(call)


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    yield process
    process.edge.close()
    assert process.process.wait(DEADLINE_S) == 0


FINE = StructuredOutputsParams(regex="[a-c]+")
# Millions of states, each of which is made for the first mask.
COSTLY = [StructuredOutputsParams(regex="(" + letter + "{1000}){4000}") for letter in "ab"]


def test_what_costs_too_much_ends_alone_and_in_time(process: Process) -> None:
    process.compile(1, FINE)
    assert process.reply().error is None
    process.open(10, FINE)
    assert isinstance(process.reply(), TokenMask)
    started = time.monotonic()
    for number, structure in enumerate(COSTLY):
        process.compile(20 + number, structure)
    # Masks come while that is compiled.
    process.open(11, FINE)
    mask = process.reply()
    assert isinstance(mask, TokenMask)
    assert mask.sequence_id == 11
    for number in range(len(COSTLY)):
        refusal = process.reply()
        assert (refusal.request_id, refusal.error) == (20 + number, TOO_MUCH)
    assert time.monotonic() - started < DEADLINE_S
    process.compile(2, StructuredOutputsParams(regex="[x-z]"))
    assert process.reply().error is None


def test_the_same_grammar_is_compiled_once(process: Process) -> None:
    for request_id in (1, 2, 3):
        process.compile(request_id, FINE)
    assert [process.reply() for _ in range(3)]
    process.compile(4, FINE)
    assert process.reply().error is None


def test_it_is_small_and_loads_nothing_heavy(process: Process) -> None:
    process.compile(1, FINE)
    assert process.reply().error is None
    pid = process.process.pid
    with open(f"/proc/{pid}/maps") as maps:
        assert not any(
            name in maps.read() for name in ("/torch/", "/transformers/", "/tokenizers/")
        )
    with open(f"/proc/{pid}/statm") as statm:
        assert int(statm.read().split()[1]) * 4096 < MAX_RESIDENT_BYTES


def test_it_ends_with_the_edge_also_while_it_compiles() -> None:
    process = Process()
    process.compile(1, COSTLY[0])
    process.edge.close()
    assert process.process.wait(DEADLINE_S) == 0
