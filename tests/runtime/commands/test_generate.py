"""`pillion generate` against a fake text edge: output, statuses, Ctrl-C."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_text_edge import DEADLINE_S, FakeTextEdge

from pillion.runtime.cli import main
from pillion.runtime.process import child_environment


@pytest.fixture
def edge(runtime_root: Path) -> Iterator[FakeTextEdge]:
    (runtime_root / "default").mkdir()
    edge = FakeTextEdge(runtime_root / "default" / "client.sock")
    yield edge
    edge.stop()


def test_prints_the_answer(edge: FakeTextEdge, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "one two", "--temperature", "0", "--timeout", "5"]) == 0
    assert capsys.readouterr().out == "one two \n"
    (request,) = edge.requests
    assert request.stream
    assert request.deadline_ms == 5000
    assert request.sampling_params is not None
    assert request.sampling_params.temperature == 0
    assert request.sampling_params.max_tokens == 256


def test_reads_standard_input(
    edge: FakeTextEdge, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert main(["generate", "-"]) == 0
    assert capsys.readouterr().out == "from a pipe \n"
    assert edge.requests[0].prompt == "from a pipe"
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["generate"]) == 1
    assert "standard input is empty" in capsys.readouterr().err


def test_asks_as_a_chat(edge: FakeTextEdge, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--chat", "hello"]) == 0
    assert main(["generate", "--system", "be brief", "hello"]) == 0
    assert capsys.readouterr().out == "hello \nhello \n"
    hello = {"role": "user", "content": "hello"}
    assert edge.requests[0].messages == [hello]
    assert edge.requests[1].messages == [{"role": "system", "content": "be brief"}, hello]


def test_several_samples(edge: FakeTextEdge, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "a", "--n", "2"]) == 0
    assert capsys.readouterr().out == "[0] a \n[1] a \n"


def test_json(edge: FakeTextEdge, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["generate", "a b", "--json", "--logprobs", "1"]) == 0
    output = json.loads(capfdbinary.readouterr().out)
    assert output["finished"] is True
    assert output["outputs"][0]["text"] == "a b "
    assert output["outputs"][0]["logprobs"][0]["0"]["decoded_token"] == "zero"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["REFUSE"], "error: prompt is not to its liking"),
        (["HANGUP"], "error: the "),
        (["BREAK"], "error: a NaN in the logits"),
        (["a", "--temperature", "-1"], "error: temperature must be between"),
        (["a", "--name", "nobody"], "pillion serve MODEL --name nobody"),
    ],
)
def test_errors(
    edge: FakeTextEdge,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert main(["generate", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_daemon_and_a_model_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "a", "--name", "x", "--model", "y"])
    assert "not allowed with" in capsys.readouterr().err


def test_interrupt_cancels(edge: FakeTextEdge) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "pillion", "generate", "NEVER"],
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.read(6) == b"so far"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=DEADLINE_S)
    assert (child.returncode, out, err) == (130, b"\n", b"")
    edge.wait("the cancel", lambda: edge.cancelled == ["0"])
