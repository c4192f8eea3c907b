"""`pillion doctor` and its checks, on machines that are well and on machines that are not."""

import importlib.metadata
import json
import os
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pillion.runtime import health_checks
from pillion.runtime.cli import main
from pillion.runtime.commands import doctor
from pillion.runtime.health_checks import Finding, check_machine, version_key
from pillion.runtime.paths import DaemonLock, RunDir

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime_root: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(health_checks, "check_cuda", lambda: iter(()))  # imports torch on a GPU


def only(check: Callable[[], Iterator[Finding]]) -> Finding:
    (finding,) = check()
    return finding


def test_this_machine_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok     python")
    assert any(line.startswith("ok     torch") for line in lines)
    assert not any(line.startswith("BROKEN") for line in lines)


def test_json(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capfdbinary.readouterr().out)
    assert {"check", "state", "detail", "advice"} == set(findings[0])


def test_something_broken_is_the_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = [Finding("a", "ok", "fine"), Finding("b", "broken", "gone", "get one")]
    monkeypatch.setattr(doctor, "check_machine", lambda: iter(findings))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines()[1] == f"BROKEN {'b':17}gone -> get one"
    monkeypatch.setattr(doctor, "check_machine", lambda: iter([Finding("a", "warning", "hm")]))
    assert main(["doctor"]) == 0


def test_the_packages_are_those_of_the_project() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    stated = dict(line.split(">=") for line in project["dependencies"] if "platform" not in line)
    assert stated == health_checks.REQUIRED


def test_packages_that_are_missing_or_old(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "tqdm":
            raise importlib.metadata.PackageNotFoundError(name)
        return "2.10.9+cpu" if name == "torch" else "999"

    monkeypatch.setattr(importlib.metadata, "version", version)
    findings = {finding.check: finding for finding in health_checks.check_packages()}
    assert (findings["tqdm"].state, findings["tqdm"].advice) == (
        "broken",
        "pip install 'tqdm>=4.66'",
    )
    assert (findings["torch"].state, findings["torch"].detail) == ("broken", "2.10.9+cpu, too old")
    assert findings["numpy"].state == "ok"


def test_versions_compare_as_numbers() -> None:
    assert version_key("2.11.0+cpu") == (2, 11, 0)
    assert version_key("2.9") < version_key("2.11.0a0")
    assert version_key("5.0rc1") == (5, 0)
    assert version_key("") == ()


def test_the_run_directory(runtime_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(health_checks.check_run_directory).state == "ok"
    assert list(runtime_root.iterdir()) == []
    runtime_root.chmod(0o777)
    assert only(health_checks.check_run_directory).state == "warning"
    monkeypatch.setenv("PILLION_RUNTIME_DIR", "/tmp/" + "x" * 100)
    finding = only(health_checks.check_run_directory)
    assert finding.state == "broken"
    assert "107" in finding.detail
    blocked = runtime_root / "file"
    blocked.write_text("")
    monkeypatch.setenv("PILLION_RUNTIME_DIR", str(blocked))
    assert only(health_checks.check_run_directory).state == "broken"


def test_the_model_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no model yet" in only(health_checks.check_model_cache).detail
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert only(health_checks.check_model_cache).state == "broken"


def test_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert health_checks.available_memory_bytes() > 0
    monkeypatch.setattr(health_checks, "available_memory_bytes", lambda: 2**30)
    assert only(health_checks.check_memory).state == "warning"


def test_a_daemon_that_does_not_answer(run_dir: RunDir) -> None:
    assert only(health_checks.check_daemons).detail == "none running"
    lock = DaemonLock.acquire(run_dir)
    try:
        finding = only(health_checks.check_daemons)
    finally:
        lock.release()
    assert (finding.check, finding.state) == ("daemon d", "broken")
    assert f"pid {os.getpid()} does not answer" in finding.detail
    assert "pillion stop --now --name d" in finding.advice


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_memory() -> Iterator[Finding]:
        raise PermissionError("no entry")

    monkeypatch.setattr(health_checks, "check_memory", check_memory)
    (finding,) = [finding for finding in check_machine() if finding.check == "memory"]
    assert (finding.state, finding.detail) == ("broken", "cannot be looked at: no entry")
