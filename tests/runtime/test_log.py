"""The log: where its tail begins, how it is followed, and which levels there are."""

import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import wait_until

from pillion.runtime import log
from pillion.runtime.errors import ConfigError
from pillion.runtime.log import LogFollower, open_log, tail_offset
from pillion.runtime.process import child_environment


@given(
    lines=st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=30),
    ended=st.booleans(),
    wanted=st.integers(0, 35),
    chunk=st.integers(1, 50),
)
def test_the_tail_has_as_many_lines_as_wanted(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    ended: bool,
    wanted: int,
    chunk: int,
) -> None:
    data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    path = tmp_path_factory.mktemp("log") / "daemon.log"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "_COPY_BYTES", chunk)
        offset = tail_offset(path, wanted)
    expected = _lines(data)[-wanted:] if wanted else []
    assert data[offset:] == b"".join(expected)


def _lines(data: bytes) -> list[bytes]:
    pieces = [piece + b"\n" for piece in data.split(b"\n")]
    pieces[-1] = pieces[-1][:-1]
    return [piece for piece in pieces if piece]


def test_a_follower_copies_what_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    path.write_bytes(b"old\nnew\n")
    out = io.BytesIO()
    follower = LogFollower(path, 4, out)
    wait_until("the first line is copied", 5, lambda: out.getvalue() == b"new\n")
    with path.open("ab") as file:
        file.write(b"newer\n")
    wait_until("the second line is copied", 5, lambda: out.getvalue() == b"new\nnewer\n")
    with path.open("ab") as file:
        file.write(b"last\n")
    follower.close(5)
    assert out.getvalue() == b"new\nnewer\nlast\n"


def test_a_blocked_terminal_does_not_hold_up_the_end(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    path.write_bytes(b"x" * 1_000_000)
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb", 0) as out:
        follower = LogFollower(path, 0, out)
        follower.close(0.2)  # returns although nobody reads
        while len(os.read(reading, 1 << 16)) == 1 << 16:  # lets the thread go
            pass
        follower.close(5)
    os.close(reading)


def test_a_large_log_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "daemon.log"
    monkeypatch.setattr(log, "MAX_LOG_BYTES", 10)
    path.write_bytes(b"0123456789")
    for text in (b"A", b"B"):
        descriptor = open_log(path)
        os.write(descriptor, text)
        os.close(descriptor)
    assert path.read_bytes() == b"B"
    assert path.with_name("daemon.log.1").read_bytes() == b"0123456789A"
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("level", "printed"), [("", "IW"), ("debug", "DIW"), ("WARNING", "W"), ("error", "")]
)
def test_the_level_comes_from_the_environment(
    level: str, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILLION_LOG", level)
    script = (
        "import logging; from pillion.runtime.log import start_logging; start_logging('me')\n"
        "for level, text in ((10, 'D'), (20, 'I'), (30, 'W')): logging.log(level, text)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    lines = result.stderr.splitlines()
    assert "".join(line[-1] for line in lines) == printed
    assert all(" me[" in line for line in lines)


def test_an_unknown_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILLION_LOG", "loud")
    before = logging.getLogger().handlers[:]
    with pytest.raises(ConfigError, match="PILLION_LOG must be one of debug, info"):
        log.start_logging("me")
    assert logging.getLogger().handlers == before
