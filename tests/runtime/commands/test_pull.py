"""`pillion pull`."""

from pathlib import Path

import pytest

from pillion.runtime.cli import main
from pillion.runtime.commands import pull
from pillion.runtime.errors import ModelError
from pillion.runtime.model_source import ModelSource


def test_prints_where_the_model_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool, bool]] = []

    def resolve_model(model: str, *, progress: bool, refresh: bool) -> ModelSource:
        asked.append((model, progress, refresh))
        return ModelSource("gguf", Path("/cache/tiny.gguf"), model)

    monkeypatch.setattr(pull, "resolve_model", resolve_model)
    assert main(["pull", "tiny"]) == 0
    assert main(["pull", "tiny", "--quiet"]) == 0
    assert capsys.readouterr().out == "/cache/tiny.gguf\n" * 2
    assert asked == [("tiny", True, True), ("tiny", False, True)]


def test_errors_say_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve_model(model: str, *, progress: bool, refresh: bool) -> ModelSource:
        raise ModelError("the hub has no such model")

    monkeypatch.setattr(pull, "resolve_model", resolve_model)
    assert main(["pull", "no/model"]) == 1
    assert capsys.readouterr().err == "error: the hub has no such model\n"
