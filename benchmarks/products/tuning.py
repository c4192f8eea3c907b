"""What the tuner of the decode products has timed and chosen, and the file that says so."""

import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from products.candidates import ahead
from products.checking import Candidate
from products.choice import (
    Times,
    as_choice,
    best_forms,
    from_json,
    kind_of,
    short,
    table_lines,
    table_of,
    to_json,
)
from products.descent import LEAST_GAIN, Descent, LayerForms, coordinates
from products.layers import Layers
from products.product import (
    SHAPES,
    Form,
    Library,
    Product,
    form_of_more,
    form_today,
    relative_error,
)

# Of the tiles of a product, those that are tried with other amounts asked for ahead.
_FINALISTS: Final = 2
# Of the stream behind some layers, against today's.
_LARGEST_ERROR: Final = 3e-2
# Times that today's layers and the chosen ones are timed in turn at the end.
_TURNS: Final = 3


class Tuning:
    """What has been timed and chosen so far of some products' forms."""

    def __init__(
        self,
        names: Sequence[str],
        right: set[Candidate],
        deadline: float,
        descent_seconds: float,
        out: Path | None,
    ) -> None:
        self._names = names
        self._right = right
        self._deadline = deadline
        self._descent_seconds = descent_seconds
        self._out = out
        self._times: Times = {}
        self._scale_us: dict[tuple[str, int], float] = {}
        self._chosen: dict[tuple[str, int], dict[str, Form | None]] = {}
        self._layers: list[dict[str, Any]] = []

    def time_products(self, shape: str, rows: int) -> None:
        """All products of a model for so many rows."""
        for name in self._names:
            if time.monotonic() > self._deadline:
                return
            forms = [
                candidate.form
                for candidate in self._right
                if candidate[:3] == (shape, name, rows) and candidate.form is not None
            ]
            product = Product(SHAPES[shape], name, rows)
            if name == "gated":
                self._scale_us[shape, rows] = product.scale_us()
            times = {form: product.microseconds(form) for form in forms}
            tiles = [form for form in times if not isinstance(form, Library)]
            for tile in sorted(tiles, key=lambda form: times[form])[:_FINALISTS]:
                if not isinstance(tile, Library):
                    for other in ahead(tile, product.k):
                        times.setdefault(other, product.microseconds(other))
            self._times[shape, name, rows] = times
        isolated = best_forms(self._times, self._scale_us, shape, rows)
        self._chosen[shape, rows] = dict(isolated)
        said = "; ".join(_said(shape, n, rows, self._times[shape, n, rows]) for n in self._names)
        print(f"{shape} {rows} products: {said}", flush=True)
        self.write()

    def time_layers(self, shape: str, rows: int) -> None:
        """Changes whole layers from the best form of each product on, and compares them with today's."""
        if time.monotonic() > self._deadline or (shape, rows) not in self._chosen:
            return
        chosen, layers = self._chosen[shape, rows], Layers(SHAPES[shape], rows)
        names = [name for name in LayerForms._fields if name in chosen]
        today, more = (
            LayerForms(
                **{name: as_choice(form(SHAPES[shape], name, rows)) for name in names},
                attention_early=layers.attention_early,
            )
            for form in (form_today, form_of_more)
        )
        alone = LayerForms(**{n: as_choice(chosen[n]) for n in names})

        def measure(forms: LayerForms, repeats: int = 5) -> tuple[float, torch.Tensor]:
            table = table_of({(shape, rows): forms.products()})
            return layers.measure(table, early=forms.attention_early, repeats=repeats)

        def microseconds(forms: LayerForms) -> float:
            try:
                return measure(forms)[0]
            except Exception as error:
                print(f"{shape} {rows} {forms}: {error!r:.120}", flush=True)
                return math.inf

        deadline = min(self._deadline, time.monotonic() + self._descent_seconds)
        descent = Descent(microseconds, lambda: time.monotonic() > deadline)
        of_layer = {name: self._times[shape, name, rows] for name in names}
        starts = [
            forms._replace(attention_early=early)
            for forms in (today, more, alone)
            for early in (False, True)
        ]
        best = descent.run(starts, coordinates(of_layer, self._scale_us[shape, rows], shape))
        other = best._replace(attention_early=not best.attention_early)
        turns = [[measure(forms, 15) for forms in (today, best, other)] for _ in range(_TURNS)]
        today_us, best_us, other_us = (
            statistics.median(turn[i][0] for turn in turns) for i in range(3)
        )
        error = relative_error(turns[0][1][1], turns[0][0][1])
        chosen.update(best.products())
        self._layers.append(
            {
                "shape": shape,
                "rows": rows,
                "today_us": today_us,
                "more_us": descent.us(more),
                "alone_us": descent.us(alone),
                "chosen_us": best_us,
                "other_attention_us": other_us,
                "error": error,
                "attention_early": best.attention_early,
            }
        )
        self.write()
        ms = (today_us - best_us) * SHAPES[shape].num_layers / 1e3
        forms = ", ".join(f"{name} {short(form)}" for name, form in best.products().items())
        print(
            f"{shape} {rows} layer: today {today_us:.2f} us, of more rows {descent.us(more):.2f}, best of each"
            f" {descent.us(alone):.2f}, chosen {best_us:.2f} (error {error:.1e}, {len(descent.times)} tried);"
            f" a step {ms:.3f} ms less: {forms}, attention {'early' if best.attention_early else 'late'}"
            f" (else {other_us:.2f})",
            flush=True,
        )

    def write(self) -> None:
        """The file, as far as it goes."""
        if self._out is None:
            return
        times = [
            {"product": list(key), "us": [[to_json(form), us] for form, us in found.items()]}
            for key, found in self._times.items()
        ]
        chosen = [
            {"shape": key[0], "rows": key[1], "forms": {n: to_json(f) for n, f in found.items()}}
            for key, found in self._chosen.items()
        ]
        scale = [[*key, us] for key, us in self._scale_us.items()]
        data = {
            "device": torch.cuda.get_device_name(),
            "chosen": chosen,
            "layers": self._layers,
            "scale_us": scale,
            "times": times,
        }
        self._out.write_text(json.dumps(data))


def _said(shape: str, name: str, rows: int, times: dict[Form, float]) -> str:
    """A product's time with today's form, and the best of each kind."""
    today = form_today(SHAPES[shape], name, rows)
    best: dict[str, tuple[float, Form]] = {}
    for form in sorted(times, key=lambda form: times[form]):
        best.setdefault(kind_of(form), (times[form], form))
    kinds = [
        f"{kind} {us:.1f}" + ("" if isinstance(form, Library) else f" {short(form)}")
        for kind, (us, form) in best.items()
    ]
    said = f"{times[today]:.1f}" if today in times else "not timed"
    return f"{name} {said}: {', '.join(kinds)}"


def print_table(paths: Sequence[Path]) -> None:
    """The table that follows from files; the later ones win. Where layers are hardly faster, it stays as it is."""
    chosen: dict[tuple[str, int], dict[str, Form]] = {}
    early: dict[tuple[str, int], bool] = {}
    for path in paths:
        data = json.loads(path.read_text())
        layers = {
            (found["shape"], found["rows"]): found for found in data["layers"] if _pays(found)
        }
        for found in data["chosen"]:
            key = found["shape"], found["rows"]
            forms = {name: from_json(form) for name, form in found["forms"].items()}
            # A head is behind all layers.
            forms = {name: form for name, form in forms.items() if key in layers or name == "head"}
            chosen.setdefault(key, {}).update(forms)
            if key in layers:
                early[key] = layers[key]["attention_early"]
    print("\n".join(table_lines(table_of(chosen))))
    for (shape, rows), is_early in early.items():
        if is_early:
            print(f"# early attention: {shape} with {rows} rows")


def _pays(layers: Mapping[str, Any]) -> bool:
    """Whether chosen layers are right and faster than today's by more than chance."""
    enough_us = layers["today_us"] * (1 - LEAST_GAIN)
    return bool(layers["chosen_us"] < enough_us and layers["error"] < _LARGEST_ERROR)
