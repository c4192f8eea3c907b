"""A benchmark's results as a picture."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pillion.runtime.bench.report import Report
from pillion.runtime.errors import PillionError

REPORT = Report(
    "speed",
    ["batch", "first token ms", "tok/s"],
    [[1, 5.0, 70.0], [8, None, 240.0]],
    plot_columns=("batch", "first token ms", "tok/s"),
)


class Axis:
    """What is drawn on it."""

    def __init__(self) -> None:
        self.drawn: list[Any] = []

    def bar(self, labels: list[str], heights: list[float], color: str) -> None:
        self.drawn += [labels, heights]

    def set_xlabel(self, label: str) -> None:
        self.drawn.append(label)

    def set_title(self, title: str) -> None:
        self.drawn.append(title)


class Library:
    """Stands in for matplotlib, which the tests do not install."""

    def __init__(self) -> None:
        self.axes: list[Axis] = []

    def use(self, backend: str) -> None:
        assert backend == "Agg"  # needs no screen

    def subplots(self, rows: int, columns: int, **options: Any) -> tuple[Any, Any]:
        self.axes = [Axis() for _ in range(columns)]
        figure = SimpleNamespace(
            suptitle=lambda title: None, tight_layout=lambda: None, savefig=self._save
        )
        return figure, [self.axes]

    def _save(self, path: Path, dpi: int) -> None:
        if path.suffix != ".png":
            raise ValueError(f"Format {path.suffix!r} is not supported")
        path.write_bytes(b"picture")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    matplotlib = SimpleNamespace(use=library.use, pyplot=library)
    monkeypatch.setitem(sys.modules, "matplotlib", matplotlib)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", library)
    return library


def test_each_column_to_draw_is_a_chart_of_its_own(library: Library, tmp_path: Path) -> None:
    REPORT.plot(tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes() == b"picture"
    assert [axis.drawn for axis in library.axes] == [
        [["1", "8"], [5.0, 0], "batch", "first token ms"],
        [["1", "8"], [70.0, 240.0], "batch", "tok/s"],
    ]


def test_a_kind_of_file_that_cannot_be_drawn_is_told(library: Library, tmp_path: Path) -> None:
    with pytest.raises(PillionError, match=r"cannot draw .*r\.xyz: Format '\.xyz'"):
        REPORT.plot(tmp_path / "r.xyz")
