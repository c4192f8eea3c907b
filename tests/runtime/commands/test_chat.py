"""`pillion chat`: the conversation, its commands, pipes and interrupts."""

import io
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_text_edge import DEADLINE_S, FakeTextEdge

from pillion.messages.sampling import SamplingParams
from pillion.runtime.cli import main
from pillion.runtime.client import Client
from pillion.runtime.commands.chat import Chat
from pillion.runtime.errors import InvalidRequest
from pillion.runtime.process import child_environment


@pytest.fixture
def edge(runtime_root: Path) -> Iterator[FakeTextEdge]:
    (runtime_root / "default").mkdir()
    edge = FakeTextEdge(runtime_root / "default" / "client.sock")
    yield edge
    edge.stop()


@pytest.fixture
def chat(edge: FakeTextEdge) -> Iterator[Chat]:
    with Client() as client:
        yield Chat(client, "be kind", SamplingParams(max_tokens=None))


SYSTEM = {"role": "system", "content": "be kind"}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_answers_join_the_conversation(chat: Chat, edge: FakeTextEdge) -> None:
    shown: list[str] = []
    chat.answer("a b", shown.append)
    chat.answer("c", shown.append)
    assert shown == ["a ", "b ", "c "]
    assert edge.requests[1].messages == [SYSTEM, user("a b"), assistant("a b "), user("c")]
    assert chat.messages[-1] == assistant("c ")


def test_a_failed_message_does_not_stay(chat: Chat) -> None:
    with pytest.raises(InvalidRequest):
        chat.answer("REFUSE", lambda text: None)
    assert chat.messages == [SYSTEM]


def test_an_interrupted_answer_stays_as_far_as_it_came(chat: Chat, edge: FakeTextEdge) -> None:
    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chat.answer("NEVER", interrupt)
    edge.wait("the cancel", lambda: len(edge.cancelled) == 1)
    assert chat.messages == [SYSTEM, user("NEVER"), assistant("so far")]


def test_commands(chat: Chat) -> None:
    chat.answer("a", lambda text: None)
    assert chat.command("/reset") is not None
    assert chat.messages == [SYSTEM]
    assert chat.command("/system be brief") is not None
    assert chat.messages == [{"role": "system", "content": "be brief"}]
    assert chat.command("/system") is not None
    assert chat.messages == []
    assert chat.command("/set temperature 0.5") == "temperature = 0.5"
    assert chat.command("/set max_tokens 7") == "max_tokens = 7"
    assert chat.params == SamplingParams(temperature=0.5, max_tokens=7)
    assert chat.command("/set") == "temperature = 0.5\nmax_tokens = 7"
    assert "/reset" in (chat.command("/help") or "")
    assert chat.command("/exit") is None
    for line in ("/what", "/set temperature hot", "/set temperature -1", "/set nothing 1"):
        with pytest.raises(InvalidRequest):
            chat.command(line)
    assert chat.params == SamplingParams(temperature=0.5, max_tokens=7)


@pytest.mark.parametrize("flag", ["--n", "--logprobs", "--prompt-logprobs"])
def test_what_a_conversation_cannot_show_is_no_flag(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["chat", flag, "2"])
    assert flag in capsys.readouterr().err


def test_through_a_pipe(
    edge: FakeTextEdge, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a b\n\nc\n"))
    assert main(["chat", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == "a b \nc \n"
    assert edge.requests[1].messages == [user("a b"), assistant("a b "), user("c")]
    params = edge.requests[0].sampling_params
    assert params is not None
    assert (params.temperature, params.max_tokens) == (0, None)


def test_an_error_in_a_pipe_is_told_at_the_end(
    edge: FakeTextEdge, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("REFUSE\n/what\na\n/exit\nnever read\n"))
    assert main(["chat"]) == 1
    said = capsys.readouterr()
    assert said.out == "a \n"
    assert said.err.count("error: ") == 2
    assert edge.requests[1].messages == [user("a")]


def read_until(descriptor: int, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        seen += os.read(descriptor, 1000)
    return seen


def test_on_a_terminal(edge: FakeTextEdge) -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "pillion", "chat"],
        env={**child_environment(), "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        assert b"/help shows the commands" in read_until(ours, b"> ")
        os.write(ours, b"NEVER\n")
        read_until(ours, b"so far")
        child.send_signal(signal.SIGINT)
        read_until(ours, b"> ")
        edge.wait("the cancel", lambda: len(edge.cancelled) == 1)
        os.write(ours, b"hello\n")
        assert b"hello \r\n" in read_until(ours, b"> ")
        os.write(ours, b"\x04")
        assert child.wait(DEADLINE_S) == 0
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    assert edge.requests[1].messages == [user("NEVER"), assistant("so far"), user("hello")]
