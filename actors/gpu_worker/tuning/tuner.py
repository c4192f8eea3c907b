"""Chooses the fastest right form of each product for each number of rows, as long as there is time."""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from pillion.actors.gpu_worker.tuning.cache import Chosen, Tuned
from pillion.actors.gpu_worker.tuning.choice import fastest_together
from pillion.actors.gpu_worker.tuning.forms import Form, ahead
from pillion.actors.gpu_worker.tuning.plan import Candidate, Product, TuningPlan
from pillion.kernels.fused_linear.tiles import Choice, Kind, Table

logger = logging.getLogger(__name__)

# Of the stream behind some layers, against what it is with untuned products.
_LARGEST_ERROR: Final = 3e-2


class Bench(Protocol):
    """Measures on a device."""

    def microseconds(self, candidate: Candidate) -> float:
        """Of one product. Raises what a kernel that cannot run raises."""

    def compare_layers(self, rows: int, table: Table) -> tuple[float, float, float]:
        """Microseconds of a layer untuned and with a table, and how far apart the results are."""


def tune(
    plan: TuningPlan, right: Collection[Candidate], bench: Bench, is_over: Callable[[], bool]
) -> tuple[Tuned, bool]:
    """The forms that are faster than what runs untuned, among those known to be right.

    Also whether there was time for every number of rows: what is left stays untuned.
    """
    chosen: Chosen = {}
    layer_us: dict[int, tuple[float, float]] = {}
    for rows in plan.row_classes:
        if is_over():
            return Tuned(chosen, layer_us), False
        fastest = _fastest(plan, rows, right, bench)
        of_layers = {key: choice for key, choice in fastest.items() if key[0] != "head"}
        if of_layers:
            us = _layer_us(bench, rows, table_of(plan, of_layers))
            if us is not None:
                layer_us[rows] = us[0], min(us)
            if us is None or us[1] >= us[0]:
                fastest = {key: fastest[key] for key in fastest.keys() - of_layers.keys()}
        chosen |= fastest
    return Tuned(chosen, layer_us), True


def table_of(plan: TuningPlan, chosen: Mapping[tuple[str, int], Choice]) -> Table:
    """As the products' kernels ask for it."""
    keys = {product.name: (product.kind, product.n, product.k) for product in plan.products}
    table: dict[tuple[Kind, int, int], dict[int, Choice]] = {}
    for (name, rows), choice in chosen.items():
        table.setdefault(keys[name], {})[rows] = choice
    return table


def _layer_us(bench: Bench, rows: int, table: Table) -> tuple[float, float] | None:
    """Of a layer untuned and with a table; no less if the latter is wrong, None if it cannot run."""
    try:
        before_us, after_us, error = bench.compare_layers(rows, table)
    except Exception as failure:
        logger.warning("layers of %d rows stay untuned: %r", rows, failure)
        return None
    if error <= _LARGEST_ERROR:
        return before_us, after_us
    logger.warning("layers of %d rows stay untuned: tuned they are off by %.1e", rows, error)
    return before_us, before_us


def _fastest(plan: TuningPlan, rows: int, right: Collection[Candidate], bench: Bench) -> Chosen:
    found: Chosen = {}
    for products in plan.together():
        times = [_times(plan, product, rows, right, bench) for product in products]
        forms = fastest_together(times)
        for product, form in zip(products, forms or (), strict=False):
            found[product.name, rows] = form.choice
    return found


def _times(
    plan: TuningPlan, product: Product, rows: int, right: Collection[Candidate], bench: Bench
) -> dict[Form, float]:
    """Of all right forms of a product; of the fastest ones also with more or less asked for ahead."""
    times: dict[Form, float] = {}

    def time(form: Form) -> None:
        try:
            times[form] = bench.microseconds(Candidate(product, rows, form))
        except Exception as error:
            logger.info("%s of %d rows cannot run as %s: %r", product.name, rows, form, error)

    forms = plan.forms(product, rows)
    for form in forms:
        if Candidate(product, rows, form) in right:
            time(form)
    for scaled in (False, True):
        alike = [form for form in times if form.scaled == scaled]
        # Heads are launched without a launch before that they could begin beside.
        if alike and product.kind != "head" and not plan.is_fixed(product):
            best = min(alike, key=lambda form: times[form])
            for choice in ahead(best.choice, product.k):
                if Form(choice, scaled) not in times:
                    time(Form(choice, scaled))
    return times
