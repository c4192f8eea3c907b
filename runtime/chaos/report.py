"""What a chaos run has found, as text and as JSON."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pillion.runtime.chaos.answers import FAULTS, Answer, Fault, find_fault
from pillion.runtime.chaos.pauses import quantile
from pillion.runtime.chaos.strikes import Blow

_MAX_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class FoundFault:
    """One request that went wrong."""

    number: int
    kind: str  # of request
    fault: Fault
    words: str


@dataclass(slots=True)
class ChaosReport:
    """The outcome of one run."""

    settings: dict[str, Any]
    num_requests: int
    num_distinct: int
    undisturbed_s: float
    disturbed_s: float
    blows: list[Blow]
    faults: list[FoundFault]
    num_without_end: int
    restarts: dict[str, int]
    left_open: dict[str, float]  # what actors still hold when every client is done
    pauses: dict[str, list[float]]
    daemon_failure: str | None

    @property
    def is_right(self) -> bool:
        """Whether nothing was wrong."""
        wrong = self.faults or self.num_without_end or self.left_open or self.daemon_failure
        return not wrong

    def count(self, fault: Fault) -> int:
        """Requests with this fault."""
        return sum(found.fault == fault for found in self.faults)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "settings": self.settings,
            "requests": self.num_requests,
            "distinct_requests": self.num_distinct,
            "undisturbed_s": round(self.undisturbed_s, 1),
            "disturbed_s": round(self.disturbed_s, 1),
            "kills": sum(not blow.stops for blow in self.blows),
            "stops": sum(blow.stops for blow in self.blows),
            "blows_per_actor": dict(Counter(_name(blow) for blow in self.blows)),
            **{fault: self.count(fault) for fault in FAULTS},
            "without_terminal_event": self.num_without_end,
            "left_open": self.left_open,
            "restarts": self.restarts,
            "blow_to_next_token_s": {
                name: {
                    "median": round(quantile(waits, 0.5), 3),
                    "p99": round(quantile(waits, 0.99), 3),
                    "streams": len(waits),
                }
                for name, waits in sorted(self.pauses.items())
            },
            "daemon_failure": self.daemon_failure,
            "faults": [
                {"request": f.number, "kind": f.kind, "fault": f.fault, "words": f.words}
                for f in self.faults
            ],
        }

    def write_json(self, path: Path) -> None:
        """Writes everything."""
        path.write_text(json.dumps(self.as_dict(), indent=2) + "\n")

    def text(self) -> str:
        """For people."""
        data = self.as_dict()
        lines = [
            f"{data['requests']} requests ({data['distinct_requests']} different ones) in"
            f" {data['disturbed_s']:.0f} s, {data['kills']} kills, {data['stops']} stops",
            "  ".join(f"{fault} {data[fault]}" for fault in FAULTS)
            + f"  without a terminal event {self.num_without_end}",
            "",
            f"{'struck':24}{'times':>7}{'streams':>9}{'median s':>10}{'p99 s':>8}   to the next token",
        ]
        for name, times in sorted(data["blows_per_actor"].items()):
            waits = data["blow_to_next_token_s"].get(name)
            shown = (
                f"{waits['streams']:>9}{waits['median']:>10.3f}{waits['p99']:>8.3f}"
                if waits
                else f"{'-':>9}{'-':>10}{'-':>8}"
            )
            lines.append(f"{name:24}{times:>7}{shown}")
        for found in self.faults[:_MAX_SHOWN]:
            lines.append(f"request {found.number} ({found.kind}) {found.fault}: {found.words}")
        if len(self.faults) > _MAX_SHOWN:
            lines.append(f"and {len(self.faults) - _MAX_SHOWN} more")
        for name, value in self.left_open.items():
            lines.append(f"left open at the end: {name} = {value:g}")
        if self.daemon_failure is not None:
            lines.append(f"the daemon failed: {self.daemon_failure}")
        lines.append("all is right" if self.is_right else "something is WRONG")
        return "\n".join(lines)


def _name(blow: Blow) -> str:
    return f"{blow.actor} (stopped)" if blow.stops else blow.actor


def compare(expected: dict[int, Answer], answers: Sequence[Answer]) -> tuple[list[FoundFault], int]:
    """The faults of all answers, and how many answers have no end although their client waited for it."""
    faults: list[FoundFault] = []
    num_without_end = 0
    for number, answer in enumerate(answers):
        found = find_fault(expected[answer.request.index], answer)
        if found is not None:
            faults.append(FoundFault(number, answer.request.kind, *found))
        waited = answer.request.cancel_after is None and answer.error is None
        if waited and any(sample.finish_reason is None for sample in answer.samples):
            num_without_end += 1
    return faults, num_without_end
