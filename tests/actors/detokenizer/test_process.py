"""The text edge as a process, between real sockets: what it costs, whom it serves, and how it ends."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from edge_rig import geometry

from pillion.messages.codec import (
    FRAME_HEADER_BYTES,
    Codec,
    frame,
    frame_length,
    pack_ids,
    pack_int64,
)
from pillion.messages.control import (
    ActorFailed,
    ActorReady,
    ActorStats,
    Drain,
    Drained,
    Shutdown,
    StartPhase,
)
from pillion.messages.ids import FINISH_LENGTH
from pillion.messages.inboxes import DaemonToClient, LauncherInbox, SchedulerInbox
from pillion.messages.requests import AbortRequest, NewRequest
from pillion.messages.sampling import SamplingParams
from pillion.messages.steps import StepOutput
from pillion.messages.text import (
    MAX_FRAME_BYTES,
    GenerateChunk,
    GenerateRequest,
    Hello,
    RequestFailed,
    TokenizeRequest,
    Welcome,
)
from pillion.runtime.channels import Inbox, Post
from pillion.runtime.clock import NS_PER_S
from pillion.runtime.config import EngineConfig
from pillion.runtime.paths import RunDir
from pillion.runtime.process import actor_arguments, child_environment

DEADLINE_S = 20.0
MAX_MODEL_LEN = 8192
VOCAB_SIZE = 49152


class EdgeProcess:
    """A text edge with SmolLM2's tokenizer; this test is its launcher, its scheduler and its worker."""

    def __init__(self, run_dir: RunDir, model: Path, **config: Any) -> None:
        self.run_dir = run_dir
        run_dir.config.write_bytes(EngineConfig(model=str(model), **config).to_json())
        self.launcher: Inbox[Any] = Inbox.bind(run_dir.inbox("launcher"), LauncherInbox)
        self.scheduler: Inbox[Any] = Inbox.bind(run_dir.inbox("scheduler"), SchedulerInbox)
        self.post = Post(run_dir)
        self.log = run_dir.log.open("w+")
        self.stats: dict[str, int | float] = {}
        lifetime_fd, self.lifetime_fd = os.pipe()
        lock_fd = os.open(run_dir.lock, os.O_RDWR | os.O_CREAT)
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "pillion.actors.detokenizer.process"),
                *actor_arguments(run_dir, 1, lifetime_fd, lock_fd),
            ],
            stderr=self.log,
            pass_fds=(lifetime_fd, lock_fd),
            env=child_environment(),
        )
        os.close(lifetime_fd)
        os.close(lock_fd)
        self._step_id = 0

    def heard(self, kind: type[Any]) -> Any:
        """The next message of this kind to the launcher."""
        while True:
            message = self.launcher.receive(int(DEADLINE_S * NS_PER_S))
            if isinstance(message, ActorStats):
                self.stats = message.counters
            if isinstance(message, kind):
                return message
            if message is None or isinstance(message, ActorFailed):
                pytest.fail(f"waited for {kind.__name__}, got {message}\n{self.read_log()}")

    def ready(self) -> None:
        """Waits until the model is loaded and tells the geometry."""
        self.heard(ActorReady)
        self.heard(StartPhase)
        self.post.send("detokenizer", geometry(VOCAB_SIZE, MAX_MODEL_LEN))

    def admitted(self) -> NewRequest:
        """The next request to the scheduler."""
        request: NewRequest = self._told(NewRequest)
        return request

    def aborted(self) -> list[int]:
        """The next abort to the scheduler."""
        abort: AbortRequest = self._told(AbortRequest)
        return abort.sequence_ids

    def _told(self, kind: type[Any]) -> Any:
        while True:
            message = self.scheduler.receive(int(DEADLINE_S * NS_PER_S))
            assert message is not None, f"waited for {kind.__name__}\n{self.read_log()}"
            if isinstance(message, kind):
                return message

    def step(self, rows: list[tuple[int, int, int]], finish: int = 0) -> None:
        """A step with rows of (sequence id, position, token)."""
        self._step_id += 1
        output = StepOutput(
            epoch=1,
            step_id=self._step_id,
            plan_id=self._step_id,
            execution=0,
            sequence_ids=pack_int64(row[0] for row in rows),
            slots=pack_ids([0] * len(rows)),
            generations=pack_ids([0] * len(rows)),
            positions=pack_ids(row[1] for row in rows),
            num_tokens=pack_ids([1] * len(rows)),
            token_ids=pack_ids(row[2] for row in rows),
            finish=bytes([finish] * len(rows)),
        )
        self.post.send("detokenizer", output)

    def answer(self, request: NewRequest, token_ids: list[int]) -> None:
        """All tokens of a request's samples, one a step."""
        start = len(request.prompt_token_ids) // 4
        for place, token_id in enumerate(token_ids):
            finish = FINISH_LENGTH if place == len(token_ids) - 1 else 0
            rows = [
                (request.request_id + index, start + place, token_id) for index in range(request.n)
            ]
            self.step(rows, finish)

    def read_log(self) -> str:
        """What the process has said."""
        self.log.seek(0)
        return self.log.read()

    def close(self) -> None:
        """Ends the process as the launcher's death would."""
        os.close(self.lifetime_fd)
        self.process.wait(DEADLINE_S)
        self.launcher.close()
        self.scheduler.close()
        self.post.close()
        self.log.close()


class RawClient:
    """A client that speaks the protocol by hand."""

    def __init__(self, path: Path, greet: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(str(path))
        self._codec: Codec[Any] = Codec(DaemonToClient)
        if greet:
            self.send(Hello(protocol_version=1))
            self.welcome = self.receive()
            assert isinstance(self.welcome, Welcome)

    def send(self, *messages: object) -> None:
        """Sends messages, or bytes as the payload of a frame, in one write."""
        self.socket.sendall(
            b"".join(
                frame(message if isinstance(message, bytes) else self._codec.encode(message))
                for message in messages
            )
        )

    def receive(self) -> Any:
        """The next message; None if the daemon has hung up."""
        header = self._read(FRAME_HEADER_BYTES)
        return (
            None if header is None else self._codec.decode(self._read(frame_length(header)) or b"")
        )

    def _read(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                part = self.socket.recv(count - len(data))
            except ConnectionResetError:
                return None
            if not part:
                return None
            data += part
        return data

    def close(self) -> None:
        """Hangs up."""
        self.socket.close()


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    """Waits for a condition; fails the test with its name if it does not come true in time."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {DEADLINE_S:g} s in vain until {what}")
        time.sleep(0.005)


@contextmanager
def short_run_dir() -> Iterator[RunDir]:
    """A run directory whose path is short enough for sockets."""
    root = Path(tempfile.mkdtemp(prefix="pillion-", dir="/tmp"))
    directory = RunDir(root / "d")
    directory.create()
    yield directory
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def run_dir() -> Iterator[RunDir]:
    """A run directory of the test's own."""
    with short_run_dir() as directory:
        yield directory


@pytest.fixture(scope="module")
def edge(smollm2_path: Path) -> Iterator[EdgeProcess]:
    """An edge that is ready, for all tests that leave it as it was."""
    with short_run_dir() as directory:
        edge = EdgeProcess(directory, smollm2_path)
        edge.ready()
        yield edge
        edge.close()


@pytest.fixture
def client(edge: EdgeProcess) -> Iterator[RawClient]:
    """A client that has said Hello."""
    client = RawClient(edge.run_dir.client_socket)
    yield client
    client.close()


def test_from_start_to_answer_to_end(run_dir: RunDir, smollm2_path: Path) -> None:
    edge = EdgeProcess(run_dir, smollm2_path)
    edge.heard(ActorReady)
    client = RawClient(run_dir.client_socket)
    client.send(GenerateRequest(client_request_id="early", prompt="Hello"))
    edge.heard(StartPhase)
    edge.post.send("detokenizer", geometry(VOCAB_SIZE, MAX_MODEL_LEN))
    edge.answer(edge.admitted(), [28, 30])
    text = ""
    while True:
        chunk = client.receive()
        text += chunk.text
        if chunk.finish_reason:
            break
    assert text == ",."
    client.send(
        GenerateRequest(client_request_id="open", prompt="Hello"),
        GenerateRequest(client_request_id="chat", messages=[{"role": "user", "content": "Hi"}]),
    )
    rest = [edge.admitted(), edge.admitted()]
    edge.post.send("detokenizer", Drain(deadline_ns=time.monotonic_ns() + 20 * NS_PER_S))
    for request in rest:
        edge.answer(request, [28])
    assert {client.receive().client_request_id for _ in rest} == {"open", "chat"}
    edge.heard(Drained)
    edge.post.send("detokenizer", Shutdown())
    assert edge.process.wait(DEADLINE_S) == 0
    assert client.receive() is None
    client.close()
    edge.close()


def test_small_and_without_the_heavy_libraries(edge: EdgeProcess, client: RawClient) -> None:
    messages = [{"role": "user", "content": "Tell me of the sea. " * 200}]
    for number in range(20):
        client.send(GenerateRequest(client_request_id=str(number), messages=messages))
        edge.answer(edge.admitted(), list(range(300, 330)))
    ended = 0
    while ended < 20:
        ended += client.receive().finish_reason is not None
    memory = psutil.Process(edge.process.pid).memory_info().rss
    assert memory < 80e6, f"{memory / 1e6:.1f} MB"
    mapped = Path(f"/proc/{edge.process.pid}/maps").read_text()
    assert "torch" not in mapped
    assert "tokenizers" in mapped


def test_a_killed_client_cancels(edge: EdgeProcess) -> None:
    client = RawClient(edge.run_dir.client_socket)
    client.send(GenerateRequest(client_request_id="r", prompt="x", stream=False))
    request = edge.admitted()
    client.close()
    assert edge.aborted() == [request.request_id]


def test_two_clients_and_frames_in_pieces(edge: EdgeProcess, client: RawClient) -> None:
    other = RawClient(edge.run_dir.client_socket)
    message = frame(
        Codec[Any](DaemonToClient).encode(GenerateRequest(client_request_id="p", prompt="x"))
    )
    for byte in message:
        client.socket.sendall(bytes([byte]))
    mine = edge.admitted()
    other.send(GenerateRequest(client_request_id="o", prompt="x"))
    theirs = edge.admitted()
    edge.step([(mine.request_id, 1, 28), (theirs.request_id, 1, 30)], FINISH_LENGTH)
    assert (client.receive().text, other.receive().text) == (",", ".")
    other.close()


@pytest.mark.parametrize("first", [b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n"])
def test_what_cannot_be_frames_is_hung_up_on(
    edge: EdgeProcess, client: RawClient, first: bytes
) -> None:
    noise = RawClient(edge.run_dir.client_socket, greet=False)
    noise.socket.sendall(first)
    failure = noise.receive()
    assert isinstance(failure, RequestFailed)
    assert str(MAX_FRAME_BYTES) in failure.message
    assert noise.receive() is None
    noise.close()
    client.send(b"\xc1", GenerateRequest(client_request_id="fine", prompt="x"))
    assert isinstance(client.receive(), RequestFailed)
    edge.admitted()


def test_a_short_prompt_does_not_wait_for_long_ones(edge: EdgeProcess) -> None:
    busy = RawClient(edge.run_dir.client_socket)
    text = "one two three four " * 8_000
    for number in range(8):
        busy.send(TokenizeRequest(client_request_id=str(number), prompt=text))
    client = RawClient(edge.run_dir.client_socket)
    started = time.monotonic()
    client.send(
        GenerateRequest(
            client_request_id="text", prompt="ten tokens or so are in this short prompt"
        ),
        GenerateRequest(client_request_id="chat", messages=[{"role": "user", "content": "hi"}]),
    )
    edge.admitted()
    edge.admitted()
    waited = time.monotonic() - started
    busy.send(GenerateRequest(client_request_id="behind", prompt="x"))
    edge.admitted()
    replies = [busy.receive() for _ in range(8)]
    assert len({reply.client_request_id for reply in replies}) == 8
    assert waited < (time.monotonic() - started) / 4
    busy.close()
    client.close()


def test_a_slow_reader_gets_larger_chunks_and_all_of_its_text(edge: EdgeProcess) -> None:
    slow, quick = RawClient(edge.run_dir.client_socket), RawClient(edge.run_dir.client_socket)
    params = SamplingParams(n=64, max_tokens=None)
    slow.send(GenerateRequest(client_request_id="s", prompt="x", sampling_params=params))
    request = edge.admitted()
    quick.send(
        GenerateRequest(
            client_request_id="q", prompt="x", sampling_params=SamplingParams(max_tokens=None)
        )
    )
    other = edge.admitted()
    num_steps = 400
    for place in range(num_steps):
        finish = FINISH_LENGTH if place == num_steps - 1 else 0
        rows = [(request.request_id + index, 1 + place, 28) for index in range(64)]
        edge.step([*rows, (other.request_id, 1 + place, 30)], finish)
        # The engine and others go on while one client does not read.
        assert quick.receive().text == "."
    texts, num_chunks = [""] * 64, 0
    ended = 0
    while ended < 64:
        chunk = slow.receive()
        assert isinstance(chunk, GenerateChunk)
        assert chunk.offset == len(texts[chunk.index])
        texts[chunk.index] += chunk.text
        num_chunks += 1
        ended += chunk.finish_reason is not None
    assert texts == ["," * num_steps] * 64
    # Little was on its way to it, so it has caught up at once.
    assert num_chunks < 2_000 < 64 * num_steps / 10
    slow.close()
    quick.close()


def test_a_drain_waits_for_a_client_that_has_not_taken_all(edge: EdgeProcess) -> None:
    slow = RawClient(edge.run_dir.client_socket)
    params = SamplingParams(n=64, max_tokens=None)
    slow.send(GenerateRequest(client_request_id="s", prompt="x", sampling_params=params))
    request = edge.admitted()
    num_steps = 1_000
    for place in range(num_steps):
        finish = FINISH_LENGTH if place == num_steps - 1 else 0
        rows = [(request.request_id + index, 1 + place, 28) for index in range(64)]
        edge.step(rows, finish)
    edge.post.send("detokenizer", Drain(deadline_ns=time.monotonic_ns() + 60 * NS_PER_S))
    drained = threading.Thread(target=edge.heard, args=(Drained,))
    drained.start()
    drained.join(0.5)
    assert drained.is_alive()
    texts, ended = [""] * 64, 0
    while ended < 64:
        chunk = slow.receive()
        texts[chunk.index] += chunk.text
        ended += chunk.finish_reason is not None
    assert texts == ["," * num_steps] * 64
    drained.join(DEADLINE_S)
    assert not drained.is_alive()
    slow.close()


def test_a_model_without_a_tokenizer_fails_with_its_cause(run_dir: RunDir, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    edge = EdgeProcess(run_dir, tmp_path)
    edge.heard(ActorReady)
    failure = edge.heard(ActorFailed)
    assert "tokenizer.json" in failure.message
    assert edge.process.wait(DEADLINE_S) == 1
    edge.close()


def test_an_edge_that_fails_leaves_its_clients_to_its_next_life(
    run_dir: RunDir, smollm2_path: Path
) -> None:
    edge = EdgeProcess(run_dir, smollm2_path)
    edge.ready()
    client = RawClient(run_dir.client_socket)
    client.send(GenerateRequest(client_request_id="r", prompt="x"))
    request = edge.admitted()
    edge.step([(request.request_id, 5, 28)])  # tokens are missing before it: an invariant is broken
    assert client.receive() is None
    assert "InvariantBroken" in edge.heard(ActorFailed).message
    assert edge.process.wait(DEADLINE_S) == 1
    client.close()
    edge.close()


def test_an_idle_edge_sleeps(edge: EdgeProcess, client: RawClient) -> None:
    client.send(TokenizeRequest(client_request_id="t", prompt="x"))
    client.receive()
    process = psutil.Process(edge.process.pid)

    def switches() -> int:
        return int(process.num_ctx_switches().voluntary)

    seen = [-1]

    def quiet() -> bool:
        before = switches()
        threading.Event().wait(0.5)
        seen[0] = switches() - before
        return seen[0] < 10

    wait_until("the edge woke fewer than 10 times in half a second", quiet)
