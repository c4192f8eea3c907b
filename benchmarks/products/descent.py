"""The forms of a layer's products that are fastest together: one is changed at a time, as long as it pays."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from products.candidates import ahead
from products.choice import PAIRS, as_choice, kind_of, pair_us
from products.product import SHAPES, Form, sizes

from pillion.kernels.fused_linear.tiles import Choice, Tile, WideTile

# Of a kind of forms of a product, those that layers are timed with, and what they may take longer than the best alone.
_FINALISTS: Final = 3
_LONGER: Final = 1.15
_FINAL_PAIRS: Final = 8
# Less than this is chance.
LEAST_GAIN: Final = 2e-3


class LayerForms(NamedTuple):
    """How the products of a layer run, and whether its attention lets the launch behind in at once."""

    qkv: Choice
    output: Choice
    gated: Choice
    down: Choice
    attention_early: bool = False

    def products(self) -> dict[str, Choice]:
        """By name."""
        return {"qkv": self.qkv, "output": self.output, "gated": self.gated, "down": self.down}


Coordinate = Callable[[LayerForms], Iterable[LayerForms]]


class Descent:
    """Times of layers, each taken once, and the way down from some of them."""

    def __init__(self, measure: Callable[[LayerForms], float], is_over: Callable[[], bool]) -> None:
        self._measure = measure
        self._is_over = is_over
        self.times: dict[LayerForms, float] = {}

    def us(self, forms: LayerForms) -> float:
        """Microseconds of a layer."""
        if forms not in self.times:
            self.times[forms] = self._measure(forms)
        return self.times[forms]

    def run(self, starts: Sequence[LayerForms], coordinates: Sequence[Coordinate]) -> LayerForms:
        """The best that is found until nothing is gained any more, or time is over."""
        best = min(starts, key=self.us)
        while True:
            before = best
            for coordinate in coordinates:
                for other in coordinate(best):
                    if self._is_over():
                        return best
                    if self.us(other) < self.us(best) * (1 - LEAST_GAIN):
                        best = other
            if best == before:
                return best


def finalists(times: Mapping[Form, float]) -> list[Form]:
    """The best forms of each kind, each with its best amount asked for ahead."""
    best: dict[Form, Form] = {}
    for form in sorted(times, key=lambda form: times[form]):
        base = form._replace(prefetch_bytes=0) if isinstance(form, Tile | WideTile) else form
        best.setdefault(base, form)
    longest = _LONGER * min(times.values())
    found: list[Form] = []
    for form in best.values():
        of_kind = [other for other in found if kind_of(other) == kind_of(form)]
        if len(of_kind) < _FINALISTS and times[form] <= longest:
            found.append(form)
    return found


def coordinates(
    times: Mapping[str, Mapping[Form, float]], scale_us: float, shape: str
) -> list[Coordinate]:
    """Pairs of who writes the stream and who reads it, single products, amounts asked for ahead, and attention."""

    def pair(writer: str, reader: str) -> Coordinate:
        found: dict[tuple[Choice, Choice], float] = {}
        for w in finalists(times[writer]):
            for r in finalists(times[reader]):
                total = pair_us(w, r, (times[writer][w], times[reader][r]), scale_us)
                if total is not None:
                    found[as_choice(w), as_choice(r)] = total
        best = sorted(found, key=lambda forms: found[forms])[:_FINAL_PAIRS]
        return lambda forms: [forms._replace(**{writer: w, reader: r}) for w, r in best]

    def single(name: str) -> Coordinate:
        choices: dict[Choice, None] = {}
        for form in finalists(times[name]):
            choice = as_choice(form)
            choices[choice] = None
            if choice is not None:
                choices[choice._replace(early=not choice.early)] = None
        choices[None] = None
        return lambda forms: [forms._replace(**{name: choice}) for choice in choices]

    def asked_ahead(name: str) -> Coordinate:
        k = sizes(SHAPES[shape], name)[1]

        def others(forms: LayerForms) -> Iterable[LayerForms]:
            form = forms.products()[name]
            return [] if form is None else [forms._replace(**{name: o}) for o in ahead(form, k)]

        return others

    names = ("gated", "down", "qkv", "output")
    return [
        *(pair(*names) for names in PAIRS),
        *map(single, names),
        lambda forms: [forms._replace(attention_early=not forms.attention_early)],
        *map(asked_ahead, names),
    ]
