"""What the gateway counts, and the text in which Prometheus reads it."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from pillion.actors.gateway.request_timing import RequestTiming
from pillion.runtime.clock import NS_PER_S, now_ns

# Every generation received ends in one of these, once: received = their sum + the gauge "open".
Outcome = Literal["finished", "cancelled", "refused", "failed"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("finished", "cancelled", "refused", "failed")

_SECONDS: Final = (
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip


class Histogram:
    """Observations in seconds, counted by upper bound."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_SECONDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one observation."""
        self._counts[bisect_left(_SECONDS, seconds)] += 1
        self._sum += seconds

    def samples(self) -> list[tuple[str, dict[str, str], float]]:
        """Suffix, labels and value of each line; buckets are cumulative."""
        lines: list[tuple[str, dict[str, str], float]] = []
        total = 0
        for bound, count in zip([*map(str, _SECONDS), "+Inf"], self._counts, strict=True):
            total += count
            lines.append(("_bucket", {"le": bound}, total))
        return [*lines, ("_sum", {}, self._sum), ("_count", {}, total)]


class Metrics:
    """Counters of one gateway. `counters` and `gauges` are also what `pillion status` shows."""

    def __init__(self) -> None:
        self.counters: dict[str, int | float] = {
            "requests_received": 0,
            **{f"requests_{outcome}": 0 for outcome in OUTCOMES},
            "prompt_tokens": 0,
            "cached_prompt_tokens": 0,
            "output_tokens": 0,
        }
        self.gauges: dict[str, int | float | str] = {"open_requests": 0}
        self.responses: dict[tuple[str, int], int] = {}  # route and status -> count
        self.finish_reasons: dict[str, int] = {"stop": 0, "length": 0}
        self.first_token = Histogram()
        self.per_token = Histogram()
        self.whole = Histogram()
        self.on_change: Callable[[], None] = lambda: None
        self._num_open = 0

    def begin(self) -> RequestTiming:
        """A generation was received."""
        self.counters["requests_received"] += 1
        self._count_open(1)
        return RequestTiming()

    def end(self, timing: RequestTiming, outcome: Outcome) -> None:
        """It has ended."""
        self.counters[f"requests_{outcome}"] += 1
        self.counters["prompt_tokens"] += timing.num_prompt_tokens
        self.counters["cached_prompt_tokens"] += timing.num_cached_tokens
        self.counters["output_tokens"] += timing.num_output_tokens
        for reason in timing.finish_reasons:
            self.finish_reasons[reason] = self.finish_reasons.get(reason, 0) + 1
        if timing.first_token_ns:
            self.first_token.observe((timing.first_token_ns - timing.started_ns) / NS_PER_S)
            if timing.num_output_tokens > 1:
                span_ns = timing.last_token_ns - timing.first_token_ns
                self.per_token.observe(span_ns / NS_PER_S / (timing.num_output_tokens - 1))
        if outcome == "finished":
            self.whole.observe((now_ns() - timing.started_ns) / NS_PER_S)
        self._count_open(-1)

    def count_response(self, route: str, status: int) -> None:
        """A response has ended, whatever it was for."""
        self.responses[route, status] = self.responses.get((route, status), 0) + 1

    def _count_open(self, change: int) -> None:
        self._num_open += change
        self.gauges["open_requests"] = self._num_open
        self.on_change()


class Exposition:
    """Lines of Prometheus' text format, version 0.0.4."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(
        self,
        name: str,
        kind: Literal["counter", "gauge", "histogram"],
        help_text: str,
        samples: Iterable[tuple[str, Mapping[str, str], int | float]],
    ) -> None:
        """One metric: suffix, labels and value of each sample."""
        self._lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        for suffix, labels, value in samples:
            pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            self._lines.append(
                f"{name}{suffix}{{{pairs}}} {value}" if pairs else f"{name}{suffix} {value}"
            )

    def text(self) -> bytes:
        """The whole page."""
        return ("\n".join(self._lines) + "\n").encode()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
