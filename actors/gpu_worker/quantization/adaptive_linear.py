"""A CPU weight in several forms, each used for the numbers of rows for which it was measured to be fastest."""

import math
import time
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Final

import torch

from pillion.actors.gpu_worker.quantization.cpu_forms import Form
from pillion.actors.gpu_worker.quantization.linear import Linear

Forms = frozenset[Form]

# Numbers of rows at which forms are compared: each stands for all numbers above the one before it, the last
# also for all beyond it.
ROWS: Final = (1, 4, 8, 16, 32, 64)
# Rows and how many weights are measured with them: where memory bandwidth decides, so many that the caches
# don't hold them all. The ends come first, for measurements that take too long on a busy machine are left out.
_MEASUREMENTS: Final = ((1, 24), (64, 4), (8, 8), (16, 4), (4, 12), (32, 4))
_BUDGET_S: Final = 0.25
# What stands for a measurement that was left out: milliseconds of one thread of an AVX2 EPYC for a model of
# 106 million weights, one column for each of ROWS. Packed bfloat16, which needs AVX-512, and bfloat16 of 16
# rows and more are estimates.
_TYPICAL_MS: Final[dict[Form, tuple[float, ...]]] = {
    "four_bit": (19, 39, 74, 103, 236, 510),
    "bfloat16": (48, 122, 234, 350, 450, 600),
    "packed_bfloat16": (50, 60, 80, 100, 160, 230),
    "packed_float32": (88, 112, 136, 159, 253, 370),
}
# A second form costs memory: it must save this much, as a sum over ROWS of shares of the fastest time.
_WORTH_KEEPING: Final = 0.3
_REPEATS: Final = 2

_SMALLEST_FIRST: Final[tuple[Form, ...]] = (
    "four_bit",
    "bfloat16",
    "packed_bfloat16",
    "packed_float32",
)

Plan = tuple[Form, ...]  # one for each of ROWS
Seconds = Mapping[
    int, Mapping[Form, float]
]  # at each of ROWS, what the forms take; any unit at a row


class AdaptiveLinear:
    """See `Linear`. All forms hold the same weight to bfloat16 precision or better.

    Rows are computed by different forms in batches of different sizes, so results depend on the batch
    within the error of bfloat16. Where that matters, dtype="float32" has one form only.
    """

    def __init__(self, in_features: int, forms: dict[Form, Linear]) -> None:
        self.in_features = in_features
        self.forms = forms
        # Index: number of rows, at most ROWS[-1].
        self._by_rows: list[Linear] = [next(iter(forms.values()))] * (ROWS[-1] + 1)

    @property
    def num_bytes(self) -> int:
        """See `Linear.num_bytes`."""
        return sum(form.num_bytes for form in self.forms.values())

    @property
    def row_bytes(self) -> int:
        """See `Linear.row_bytes`."""
        return self._by_rows[1].row_bytes

    def follow(self, plan: Plan) -> None:
        """From now on uses the plan's forms and drops the others."""
        self.forms = {name: form for name, form in self.forms.items() if name in plan}
        by_rows = [self.forms[plan[0]]]
        for most, name in zip(ROWS, plan, strict=True):
            by_rows += [self.forms[name]] * (most + 1 - len(by_rows))
        self._by_rows = by_rows

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear.apply`."""
        return self._by_rows[min(x.shape[0], ROWS[-1])].apply(x)


def measure(linears: Sequence[AdaptiveLinear]) -> Seconds:
    """What the forms take, found in about a quarter of a second; `linears` all have the same forms."""
    forms = list(linears[0].forms)
    deadline = time.perf_counter() + _BUDGET_S
    seconds: dict[int, dict[Form, float]] = {
        rows: {form: _TYPICAL_MS[form][index] for form in forms} for index, rows in enumerate(ROWS)
    }
    for rows, most in _MEASUREMENTS:
        if time.perf_counter() < deadline:
            seconds[rows] = _time(linears[:most], forms, rows)
    return seconds


def fastest_plan(seconds: Seconds, forms: Forms) -> Plan:
    """The plan with these forms that loses least against the fastest of them at each of ROWS.

    A plan has one form for few rows, where
    reading the weight is the work, and the same or a larger one from some number of rows on. This is how
    the forms differ, and it bears a disturbed measurement.
    """
    losses = {
        rows: {form: each[form] / min(each[other] for other in forms) for form in forms}
        for rows, each in seconds.items()
    }

    def loss(plan: Plan) -> float:
        chosen = dict(zip(ROWS, plan, strict=True))
        total = sum(each[chosen[rows]] for rows, each in losses.items())
        return total + _WORTH_KEEPING * len(set(plan))

    ordered = [form for form in _SMALLEST_FIRST if form in forms]
    plans = [
        (few,) * switch + (many,) * (len(ROWS) - switch)
        for few, many in combinations_with_replacement(ordered, 2)
        for switch in range(1, len(ROWS) + 1)
    ]
    return min(plans, key=loss)


def _time(
    linears: Sequence[AdaptiveLinear], forms: Sequence[Form], num_rows: int
) -> dict[Form, float]:
    """Seconds of a pass over all of them; of each product the fastest of a few, as others may disturb it."""
    inputs = {each.in_features: torch.rand(num_rows, each.in_features) for each in linears}
    best = {form: [math.inf] * len(linears) for form in forms}
    for _ in range(_REPEATS):
        for form in forms:
            for index, each in enumerate(linears):
                product, x = each.forms[form], inputs[each.in_features]
                start = time.perf_counter()
                product.apply(x)
                best[form][index] = min(best[form][index], time.perf_counter() - start)
    return {form: sum(times) for form, times in best.items()}
