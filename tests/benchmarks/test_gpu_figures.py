"""Which figures are taken, and that what there is so far is kept."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpu_figures
import pytest

from pillion.runtime.bench.report import Report


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What was measured, in its order; every measurement finds one row."""
    asked: list[tuple[str, Any]] = []

    def stand_in(name: str) -> Any:
        def measure(*arguments: Any, **fields: Any) -> Report:
            asked.append((name, arguments))
            return Report(name, ["n"], [[len(asked)]])

        return measure

    @contextlib.contextmanager
    def daemon(config: Any) -> Iterator[str]:
        asked.append(("daemon", config))
        yield "a daemon"

    for name in ("startup", "measure_bare_steps", "bubble_of", "first_token_of", "interference_of"):
        monkeypatch.setattr(gpu_figures, name, stand_in(name))
    monkeypatch.setattr(gpu_figures, "private_daemon", daemon)
    return asked


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: str) -> list[dict[str, Any]]:
    monkeypatch.setattr("sys.argv", ["gpu_figures.py", f"--out={out}", *arguments])
    gpu_figures.main()
    found: list[dict[str, Any]] = json.loads((out / "gpu_figures.json").read_text())
    return found


def test_one_daemon_a_model_serves_three_measurements(
    asked: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = run(monkeypatch, tmp_path, "--models=tiny,135m")
    each = ["startup", "measure_bare_steps", "daemon", "bubble_of", "first_token_of"]
    assert [name for name, _ in asked] == [*each, "interference_of"] * 2
    assert asked[2][1].load_format == "dummy"
    assert asked[5][1] == ("a daemon", [1, 8], 1024, 3)
    assert [record["model"] for record in found] == ["tiny"] * 4 + ["135m"] * 4
    assert found[0]["rows"] == [[1]]


def test_a_failure_leaves_what_was_found(
    asked: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_figures, "first_token_of", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        run(monkeypatch, tmp_path, "--models=tiny", "--device=cpu")
    found = json.loads((tmp_path / "gpu_figures.json").read_text())
    assert [record["title"] for record in found] == ["startup"]
