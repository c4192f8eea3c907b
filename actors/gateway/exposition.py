"""The text in which Prometheus reads numbers."""

from collections.abc import Iterable, Mapping
from typing import Literal

from pillion.messages.control import HistogramCounts

Labels = Mapping[str, str]
Sample = tuple[str, Labels, int | float]  # suffix of the name, labels, value


class Exposition:
    """Lines of Prometheus' text format, version 0.0.4."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(
        self,
        name: str,
        kind: Literal["counter", "gauge", "histogram"],
        help_text: str,
        samples: Iterable[Sample],
    ) -> None:
        """One metric: suffix, labels and value of each sample."""
        self._lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        for suffix, labels, value in samples:
            pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            self._lines.append(
                f"{name}{suffix}{{{pairs}}} {value}" if pairs else f"{name}{suffix} {value}"
            )

    def one(
        self,
        name: str,
        kind: Literal["counter", "gauge"],
        help_text: str,
        value: int | float,
        labels: Labels | None = None,
    ) -> None:
        """A metric with one sample."""
        self.family(name, kind, help_text, [("", labels or {}, value)])

    def text(self) -> bytes:
        """The whole page."""
        return ("\n".join(self._lines) + "\n").encode()


def histogram_samples(counts: HistogramCounts, labels: Labels) -> Iterable[Sample]:
    """The samples of one histogram; buckets are cumulative."""
    total = 0
    for bound, count in zip([*map(str, counts.bounds), "+Inf"], counts.counts, strict=True):
        total += count
        yield "_bucket", {**labels, "le": bound}, total
    yield "_sum", labels, counts.total
    yield "_count", labels, total


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
