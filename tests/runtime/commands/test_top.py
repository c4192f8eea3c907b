"""`pillion top`: what it says before there is anything to draw."""

import importlib.util
from pathlib import Path

import pytest

from pillion.runtime.cli import main

from ..conftest import StartDaemon


def test_without_textual_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["top", "--name", "d"]) == 1
    expected = "error: pillion top needs textual: run pip install 'pillion[top]'\n"
    assert capsys.readouterr().err == expected


@pytest.mark.usefixtures("runtime_root")
def test_without_a_daemon_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--name", "ghost"]) == 1
    assert capsys.readouterr().err.startswith("error: no daemon named 'ghost' ")


def test_without_a_terminal_it_names_the_command_for_that(
    start_daemon: StartDaemon, runtime_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start_daemon().wait_state("ready")
    assert main(["top", "--name", "d"]) == 1
    assert "`pillion status`" in capsys.readouterr().err
