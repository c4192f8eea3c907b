"""How a benchmark shows what it found: a table, JSON, a picture."""

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pillion
from pillion.runtime.errors import PillionError

Cell = str | int | float | None


@dataclass(slots=True)
class Report:
    """Rows of one benchmark, all with the same columns."""

    title: str
    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # everything else that belongs into the JSON: limits, phases, settings
    details: dict[str, Any] = field(default_factory=dict)
    # columns to draw: x, then the y columns
    plot_columns: tuple[str, ...] = ()

    def text(self) -> str:
        """The table for people."""
        cells = [self.columns, *[[_show(cell) for cell in row] for row in self.rows]]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.columns))]
        lines = [self.title]
        lines += [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in cells
        ]
        return "\n".join([*lines, *self.notes])

    def write_json(self, path: Path) -> None:
        """Everything, with when and where it was measured."""
        content = {
            "title": self.title,
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "pillion": pillion.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "columns": self.columns,
            "rows": self.rows,
            "notes": self.notes,
            **self.details,
        }
        path.write_text(json.dumps(content, indent=1) + "\n")

    def plot(self, path: Path) -> None:
        """A bar chart of the main columns, by matplotlib. Raises PillionError for a kind of file unknown to it."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        x_name, *y_names = self.plot_columns or tuple(self.columns[:2])
        at = {name: index for index, name in enumerate(self.columns)}
        figure, axes = pyplot.subplots(
            1, len(y_names), figsize=(4.5 * len(y_names), 3.4), squeeze=False
        )
        for axis, name in zip(axes[0], y_names, strict=True):
            labels = [_show(row[at[x_name]]) for row in self.rows]
            axis.bar(labels, [row[at[name]] or 0 for row in self.rows], color="#3b6ea5")
            axis.set_xlabel(x_name)
            axis.set_title(name)
        figure.suptitle(self.title)
        figure.tight_layout()
        try:
            figure.savefig(path, dpi=120)
        except ValueError as error:
            raise PillionError(f"cannot draw {path}: {error}") from error


def quantile(values: Sequence[float], q: float) -> float:
    """The value that a share of q lies at or below."""
    return sorted(values)[int(q * (len(values) - 1))]


def _show(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return (
            f"{cell:.0f}"
            if abs(cell) >= 1000
            else f"{cell:.3g}"
            if abs(cell) < 10
            else f"{cell:.1f}"
        )
    return str(cell)
