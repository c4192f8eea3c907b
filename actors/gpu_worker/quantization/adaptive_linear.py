"""A CPU weight in several forms, each used for the numbers of rows for which it was measured to be fastest."""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, Literal

import torch

from pillion.actors.gpu_worker.quantization.linear import Linear

Form = Literal["four_bit", "bfloat16", "packed_bfloat16", "packed_float32"]

# Numbers of rows at which forms are compared: each stands for all numbers above the one before it, the last
# also for all beyond it.
ROWS: Final = (1, 4, 8, 16, 32)
# Instances of one kind that are measured, per number of rows: where memory bandwidth decides, enough of
# them that the caches don't hold them all.
_INSTANCES: Final = (9, 9, 4, 2, 1)
# Beyond so many rows torch's plain bfloat16 product falls far behind, so it isn't measured there.
_PLAIN_MAX_ROWS: Final = 4
# A form must be faster by this much to be kept beside others: each costs memory.
_WORTH_KEEPING: Final = 0.9
_QUICK_S: Final = 0.005  # a measurement that takes less is repeated
# Of the result's norm; bfloat16 stays below 1 %. Beyond it a form is broken on this machine.
_MAX_DIFFERENCE: Final = 0.03

Plan = tuple[Form, ...]  # one for each of ROWS


class AdaptiveLinear:
    """See `Linear`. All forms hold the same weight to bfloat16 precision or better.

    Rows are computed by different forms in batches of different sizes, so results depend on the batch
    within the error of bfloat16. Where that matters, dtype="float32" has one form only.
    """

    def __init__(self, in_features: int, out_features: int, forms: dict[Form, Linear]) -> None:
        self.in_features = in_features
        self.out_features = out_features
        self.forms = forms
        self._by_rows: list[Linear] = []
        self.follow((next(iter(forms)),) * len(ROWS))

    @property
    def kind(self) -> tuple[int, int, tuple[Form, ...]]:
        """Weights of the same kind share a plan."""
        return self.in_features, self.out_features, tuple(sorted(self.forms))

    @property
    def num_bytes(self) -> int:
        """See `Linear.num_bytes`."""
        return sum(form.num_bytes for form in self.forms.values())

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


def measure_plans(
    linears: Sequence[AdaptiveLinear],
) -> dict[tuple[int, int, tuple[Form, ...]], Plan]:
    """The fastest forms of each kind of weight, by some tens of milliseconds of measurement.

    `linears` are in the order in which the model uses them and still have all their forms.
    """
    seconds: dict[tuple[object, Form, int], float] = defaultdict(float)
    for num_rows, most in zip(ROWS, _INSTANCES, strict=True):
        chosen = _first_of_each_kind(linears, most)
        for form in sorted({form for each in chosen for form in _candidates(each, num_rows)}):
            users = [each for each in chosen if form in _candidates(each, num_rows)]
            for each, duration in zip(users, _time(users, form, num_rows), strict=True):
                seconds[each.kind, form, num_rows] += duration
    plans = {}
    for each in _first_of_each_kind(linears, 1):
        times = {
            rows: {form: seconds[each.kind, form, rows] for form in _candidates(each, rows)}
            for rows in ROWS
        }
        plans[each.kind] = _plan(times)
    return plans


def _first_of_each_kind(linears: Sequence[AdaptiveLinear], most: int) -> list[AdaptiveLinear]:
    count: dict[object, int] = defaultdict(int)
    chosen = []
    for each in linears:
        count[each.kind] += 1
        if count[each.kind] <= most:
            chosen.append(each)
    return chosen


def _candidates(each: AdaptiveLinear, num_rows: int) -> list[Form]:
    forms = list(each.forms)
    if num_rows > _PLAIN_MAX_ROWS and len(forms) > 1:
        forms = [form for form in forms if form != "bfloat16"]
    return forms


def _time(linears: Sequence[AdaptiveLinear], form: Form, num_rows: int) -> list[float]:
    """Seconds that each takes in a pass over all of them."""
    inputs = {each.in_features: torch.rand(num_rows, each.in_features) for each in linears}
    best = [float("inf")] * len(linears)
    for _ in range(2):
        for index, each in enumerate(linears):
            x = inputs[each.in_features]
            start = time.perf_counter()
            each.forms[form].apply(x)
            best[index] = min(best[index], time.perf_counter() - start)
        if sum(best) > _QUICK_S:
            break
    return best


def _plan(times: dict[int, dict[Form, float]]) -> Plan:
    """The fastest form for each number of rows, of as few forms as do almost as well."""
    kept: list[Form] = []
    # From many rows to few: large batches have the most work to lose.
    for num_rows in reversed(ROWS):
        candidates = times[num_rows]
        fastest = min(candidates, key=lambda form: candidates[form])
        rivals = [candidates[form] for form in kept if form in candidates]
        if not rivals or candidates[fastest] < _WORTH_KEEPING * min(rivals):
            kept.append(fastest)
    plan: list[Form] = []
    for num_rows in ROWS:
        usable = {form: seconds for form, seconds in times[num_rows].items() if form in kept}
        plan.append(min(usable, key=lambda form: usable[form]))
    return tuple(plan)


def broken_forms(forms: dict[Form, Linear], in_features: int) -> list[Form]:
    """Forms whose product differs from that of torch's plain bfloat16 product by more than rounding.

    Packed and 4-bit products are internals of torch that depend on the CPU: this is cheap insurance
    against a machine on which one of them is wrong. `forms` holds "bfloat16".
    """
    x = torch.linspace(-1.0, 1.0, in_features).unsqueeze(0)
    expected = forms["bfloat16"].apply(x)
    limit = _MAX_DIFFERENCE * float(expected.norm()) + 1e-6
    distances = {name: float((form.apply(x) - expected).norm()) for name, form in forms.items()}
    # Not "> limit": NaN is broken too.
    return [name for name, distance in distances.items() if not distance <= limit]
