"""What was measured: kept in a file as it comes, shown as a table and a picture."""

import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

OURS = "pillion"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Sample:
    """One measurement of one cell."""

    model: str
    case: str  # "decode 8", "mixed", "prefill", "serve 64", "first 64"
    engine: str
    value: float
    unit: str
    machine: str
    unix: float
    details: dict[str, Any]

    @property
    def cell(self) -> tuple[str, str, str]:
        return self.model, self.case, self.engine


def this_machine() -> str:
    """Tells one machine from another, and one start of it from the next."""
    return BOOT_ID.read_text().strip()


class Samples:
    """All samples of a folder; those of other machines are kept and left out of every comparison."""

    def __init__(self, folder: Path, machine: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "samples.json"
        self.machine = machine
        self._all: list[Sample] = []
        if self._path.exists():
            self._all = [Sample(**sample) for sample in json.loads(self._path.read_text())]

    def add(
        self, cell: tuple[str, str, str], value: float, unit: str, details: dict[str, Any]
    ) -> Sample:
        sample = Sample(*cell, value, unit, self.machine, round(time.time(), 1), details)
        self._all.append(sample)
        # Whoever is ended in the middle leaves the samples so far.
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps([asdict(s) for s in self._all], indent=1) + "\n")
        new.replace(self._path)
        return sample

    def of(self, cell: tuple[str, str, str]) -> list[Sample]:
        """The samples of a cell on this machine."""
        return [s for s in self._all if s.cell == cell and s.machine == self.machine]

    def here(self) -> list[Sample]:
        """All samples of this machine."""
        return [s for s in self._all if s.machine == self.machine]


def lower_is_better(unit: str) -> bool:
    return unit.startswith("ms")


def medians(samples: Sequence[Sample]) -> dict[tuple[str, str, str], float]:
    """Median of every cell."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for sample in samples:
        values.setdefault(sample.cell, []).append(sample.value)
    return {cell: statistics.median(found) for cell, found in values.items()}


def is_ours(engine: str) -> bool:
    """Pillion, by whatever way in."""
    return engine.partition(" ")[0] == OURS


def ratio(model: str, case: str, ours: str, samples: Sequence[Sample]) -> float | None:
    """How many times better than the best of the others we are; None where one side is missing."""
    here = [s for s in samples if (s.model, s.case) == (model, case)]
    found = {engine: value for (_, _, engine), value in medians(here).items()}
    others = [value for engine, value in found.items() if not is_ours(engine)]
    if ours not in found or not others:
        return None
    lower = lower_is_better(here[0].unit)
    return min(others) / found[ours] if lower else found[ours] / max(others)


def table(samples: Sequence[Sample]) -> str:
    """A Markdown table per model: a line per engine, its medians, and our ratio to the best peer."""
    lines = []
    found = medians(samples)
    for model in dict.fromkeys(s.model for s in samples):
        mine = [s for s in samples if s.model == model]
        units = {s.case: s.unit for s in mine}
        cases = list(units)
        lines += [
            "| " + " | ".join([model, *(f"{case}, {units[case]}" for case in cases)]) + " |",
            "|" + "---|" * (len(cases) + 1),
        ]
        for engine in dict.fromkeys(s.engine for s in mine):
            cells = [_show(found.get((model, case, engine))) for case in cases]
            lines.append("| " + " | ".join([engine, *cells]) + " |")
        for ours in filter(is_ours, _engines(mine)):
            ratios = [ratio(model, case, ours, samples) for case in cases]
            cells = ["-" if r is None else f"{r:.2f} x" for r in ratios]
            lines.append("| " + " | ".join([f"{ours}: times the best other", *cells]) + " |")
        least = {case: min(_counts(mine, case)) for case in cases}
        lines += ["", f"Medians; samples of each at least: {least}.", ""]
    return "\n".join(lines)


def lines(samples: Sequence[Sample]) -> str:
    """A line per cell: medians with the number of samples behind them, and our ratio to the best peer."""
    found = medians(samples)
    text = []
    for model, case, unit in dict.fromkeys((s.model, s.case, s.unit) for s in samples):
        here = [s for s in samples if (s.model, s.case) == (model, case)]
        engines = _engines(here)
        counts = Counter(s.engine for s in here)
        shown = [f"{e} {_show(found[model, case, e])}/{counts[e]}" for e in engines]
        ratios = [ratio(model, case, ours, samples) for ours in filter(is_ours, engines)]
        shown += [f"{r:.2f} x" for r in ratios if r is not None]
        text.append(f"{model} {case}, {unit}: " + ", ".join(shown))
    return "\n".join(text)


def plot(samples: Sequence[Sample], path: Path) -> None:
    """Bars per model and case, a colour per engine."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = medians(samples)
    models = list(dict.fromkeys(s.model for s in samples))
    width = max(len({s.case for s in samples if s.model == model}) for model in models)
    figure, axes = pyplot.subplots(
        len(models), width, figsize=(2.6 * width, 2.8 * len(models)), squeeze=False
    )
    engines = _engines(samples)
    for row, model in zip(axes, models, strict=True):
        cases = {s.case: s.unit for s in samples if s.model == model}
        for axis, (case, unit) in zip(row, cases.items(), strict=False):
            here = [e for e in engines if (model, case, e) in found]
            colours = [f"C{engines.index(engine)}" for engine in here]
            axis.bar(here, [found[model, case, engine] for engine in here], color=colours)
            axis.set_title(f"{model}: {case}", fontsize=8)
            axis.set_ylabel(unit, fontsize=7)
            axis.tick_params(labelsize=6, axis="both")
            axis.tick_params(axis="x", rotation=30)
        for axis in row[len(cases) :]:
            axis.set_axis_off()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _engines(samples: Sequence[Sample]) -> list[str]:
    return list(dict.fromkeys(s.engine for s in samples))


def _counts(samples: Sequence[Sample], case: str) -> list[int]:
    """How often each engine was measured in a case."""
    return list(Counter(s.engine for s in samples if s.case == case).values())


def _show(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 10 else f"{value:.1f}"
