"""Engines as processes: asked, frozen, ended."""

import json
import os
import sys
from pathlib import Path

import pytest
from peers.processes import EngineProcess, Group, ProcessFailed, end_all, only
from waiting import wait_until

FAKE = Path(__file__).with_name("fake_engine.py")
PATIENCE_S = 30.0


def start(tmp_path: Path, name: str = "fake") -> EngineProcess:
    (tmp_path / "config.json").write_text("{}")
    setting = json.dumps({"folder": str(tmp_path)})
    command = [sys.executable, str(FAKE), "--setting", setting]
    return EngineProcess(name, command, None, tmp_path / f"{name}.log")


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_an_engine_answers_requests_until_it_is_ended(tmp_path: Path) -> None:
    process = start(tmp_path)
    assert process.read(PATIENCE_S)["version"] == "fake"
    request = {"count": 2, "input": 8, "outputs": 5, "seed": 1}
    assert process.ask(request, PATIENCE_S) == {
        "seconds": 0.005,
        "input_tokens": 16,
        "output_tokens": 10,
    }
    process.end()
    assert process.is_gone()
    with pytest.raises(ProcessFailed, match="has ended"):
        process.ask(request, PATIENCE_S)


def test_an_error_names_the_engine(tmp_path: Path) -> None:
    process = start(tmp_path)
    process.read(PATIENCE_S)
    with pytest.raises(ProcessFailed, match="fake: thirteen is too many"):
        process.ask({"count": 13, "input": 8, "outputs": 5, "seed": 1}, PATIENCE_S)
    process.end()


def test_an_engine_that_does_not_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    command = [sys.executable, str(FAKE), "--setting", json.dumps({"folder": "/nowhere"})]
    process = EngineProcess("fake", command, None, tmp_path / "log")
    with pytest.raises(ProcessFailed, match="has no config"):
        process.read(PATIENCE_S)
    process.end()


def test_an_engine_that_says_nothing_is_not_waited_for_longer_than_asked(tmp_path: Path) -> None:
    process = start(tmp_path)
    process.read(PATIENCE_S)
    with pytest.raises(ProcessFailed, match="did not answer within 0 s"):
        process.read(0.01)
    # What it would have said must not be taken for the answer to something else.
    assert process.is_gone()


def test_all_but_the_one_that_is_measured_stand_still(tmp_path: Path) -> None:
    first, second = start(tmp_path, "first"), start(tmp_path, "second")
    first.read(PATIENCE_S)
    second.read(PATIENCE_S)
    with only(first, [first, second]):
        wait_until("the second stands", PATIENCE_S, lambda: state(second.process.pid) == "T")
        assert first.ask({"mixed": True}, PATIENCE_S)["output_tokens"] == 1000
    wait_until("the second runs", PATIENCE_S, lambda: state(second.process.pid) == "S")
    end_all([first, second])
    assert first.is_gone()
    assert second.is_gone()


def test_an_engine_has_its_environment_also_as_a_server(tmp_path: Path) -> None:
    group = Group("vllm server x", ["sh", "-c", "env"], None, tmp_path / "log")
    group.process.wait()
    assert "VLLM_USE_FLASHINFER_SAMPLER=0" in group.tail(1000)
    group.end()


def test_a_frozen_group_ends_with_its_children(tmp_path: Path) -> None:
    command = ["sh", "-c", "trap '' TERM; sleep 1000 & echo $! >child; wait"]
    group = Group("stubborn", command, None, tmp_path / "log", cwd=tmp_path)
    child = tmp_path / "child"
    wait_until("the child's number", PATIENCE_S, lambda: child.exists() and bool(child.read_text()))
    group.freeze()
    end_all([group], deadline_s=0.2)
    pid = int(child.read_text())
    wait_until("the child is gone", PATIENCE_S, lambda: not os.path.exists(f"/proc/{pid}"))
    assert group.is_gone()
