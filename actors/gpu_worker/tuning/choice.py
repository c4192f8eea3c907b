"""The forms of products that are fastest together."""

from collections.abc import Mapping, Sequence
from itertools import product

from pillion.actors.gpu_worker.tuning.forms import Form


def fastest_together(times: Sequence[Mapping[Form, float]]) -> tuple[Form, ...] | None:
    """One form of each product, given the times of each product's forms; None if none go together.

    Who writes the residual stream leaves it with its `Scaled`, or without, as who reads it expects it.
    """
    fitting = [forms for forms in product(*times) if len({form.scaled for form in forms}) == 1]
    if not fitting:
        return None
    return min(
        fitting, key=lambda forms: sum(of[form] for of, form in zip(times, forms, strict=True))
    )
