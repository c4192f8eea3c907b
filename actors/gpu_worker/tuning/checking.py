"""Compiles candidates and compares them with the library's product, in a process that they may take along."""

import time
from collections.abc import Callable, Iterable
from typing import Final

from pillion.actors.gpu_worker.models.transformer import Transformer
from pillion.actors.gpu_worker.tuning.plan import Candidate, TuningPlan
from pillion.actors.gpu_worker.tuning.trial import Trial, Weights

_LARGEST_ERROR: Final = 1.5e-2


def check_part(
    plan: TuningPlan,
    model: Transformer,
    part: int,
    num_parts: int,
    seconds: float,
    report: Callable[[str], None],
) -> None:
    """Every `num_parts`-th group of candidates from `part` on, as long as there is time.

    Reports a line for each candidate, for `right_candidates`. What breaks the device ends this process.
    """
    deadline = time.monotonic() + seconds
    candidates = plan.candidates()
    for group in plan.groups()[part::num_parts]:
        if time.monotonic() > deadline:
            return
        for index in group:
            report(f"{index} {_verdict(plan, model, candidates[index])}")


def _verdict(plan: TuningPlan, model: Transformer, candidate: Candidate) -> str:
    product, rows, form = candidate
    try:
        error = Trial(plan, product, rows, Weights.of(product, model)).error(form)
    except Exception as failure:
        return f"failed: {failure!r:.200}".replace("\n", " ")
    return "right" if error <= _LARGEST_ERROR else f"off by {error:.1e}"


def right_candidates(plan: TuningPlan, lines: Iterable[str]) -> tuple[set[Candidate], bool]:
    """Those that were found right, and whether all were checked. Lines of anything else are passed over."""
    candidates = plan.candidates()
    found: dict[int, str] = {}
    for line in lines:
        index, _, verdict = line.partition(" ")
        if index.isdigit() and int(index) < len(candidates):
            found[int(index)] = verdict
    right = {candidates[index] for index, verdict in found.items() if verdict == "right"}
    return right, len(found) == len(candidates)
