"""Times the forms of the decode products for the shapes of models, beside the library's product and launches.

usage: tune_fused_linear.py [--shapes 8b,1b,135m] [--rows 64,8,256,16,32,128,1] [--processes 14] [--seconds 145]
                            [--check-seconds 80] [--out FILE.json]
       tune_fused_linear.py --print FILE.json

Compiles and checks all candidates in several processes; then times each one, whole products in a row with weights
that miss the cache, as medians of graph replays; then whole layers, with today's table and with the new one.
The file has everything that was timed and what was chosen; with --print it becomes the table of
`kernels/fused_linear/tiles.py`.
"""

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from products.candidates import ahead
from products.checking import Candidate, candidates, check_all, check_part
from products.choice import (
    Table,
    Times,
    best_forms,
    from_json,
    table_lines,
    table_of,
    to_json,
)
from products.layers import Layers
from products.product import PRODUCTS, SHAPES, Form, Library, Product, form_today

from pillion.kernels.fused_linear.tiles import MEASURED, Tile, WideTile

# Of the tiles of a product, those that are tried with other amounts asked for ahead.
_FINALISTS = 2
# Of the stream behind some layers, against today's.
_LARGEST_ERROR = 3e-2


class Tuning:
    """What has been timed and chosen so far, and the file that says so."""

    def __init__(self, right: set[Candidate], deadline: float, out: Path | None) -> None:
        self._right = right
        self._deadline = deadline
        self._out = out
        self._times: Times = {}
        self._scale_us: dict[tuple[str, int], float] = {}
        self._chosen: dict[tuple[str, int], dict[str, Form]] = {}
        self._layers: list[dict[str, Any]] = []

    def is_over(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() > self._deadline

    def time_products(self, shape: str, rows: int) -> None:
        """All products of a model for so many rows."""
        for name in PRODUCTS:
            if self.is_over():
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
            _report(shape, name, rows, times)
        self._chosen[shape, rows] = best_forms(self._times, self._scale_us, shape, rows)
        for name, form in self._chosen[shape, rows].items():
            print(f"  {shape} {rows} {name}: {form}", flush=True)
        self.write()

    def time_layers(self, shape: str, rows: int) -> None:
        """Layers with today's table and the new one; the latter also where attention lets others in early."""
        table = table_of({(shape, rows): self._chosen.get((shape, rows), {})})
        layers = Layers(SHAPES[shape], rows)
        cases: dict[str, tuple[Table, bool]] = {
            "today": (MEASURED, False),
            "today, early": (MEASURED, True),
            "new": (table, False),
            "new, early": (table, True),
        }
        found: dict[str, Any] = {"shape": shape, "rows": rows}
        first: torch.Tensor | None = None
        for case, (tiles, early) in cases.items():
            us, stream = layers.measure(tiles, early=early)
            first = stream if first is None else first
            error = float((stream.float() - first.float()).norm() / first.float().norm())
            found[case] = {"layer_us": us, "error": error}
        self._layers.append(found)
        said = ", ".join(
            f"{case} {found[case]['layer_us']:.2f} us ({found[case]['error']:.1e})"
            for case in cases
        )
        saved = found["today"]["layer_us"] - found["new, early"]["layer_us"]
        saved_ms = saved * SHAPES[shape].num_layers / 1e3
        print(f"layer of {shape}, {rows} rows: {said}; a step {saved_ms:.3f} ms less", flush=True)
        self.write()

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


def _report(shape: str, name: str, rows: int, times: dict[Form, float]) -> None:
    today = form_today(SHAPES[shape], name, rows)
    kinds: list[type] = [Tile, WideTile, Library]
    best = []
    for kind in kinds:
        of_kind = sorted((us, form) for form, us in times.items() if isinstance(form, kind))
        best += [f"{us:.2f} {tuple(form)}" for us, form in of_kind[: 3 if kind is WideTile else 2]]
    said = f"{times[today]:.2f}" if today in times else "not timed"
    print(
        f"{shape} {name} rows {rows}: today {said} us {tuple(today)}; {' | '.join(best)}",
        flush=True,
    )


def print_table(path: Path) -> None:
    """The table that follows from a file. Where whole layers were not faster, it stays as it is."""
    data = json.loads(path.read_text())
    faster = {(found["shape"], found["rows"]) for found in data["layers"] if _is_faster(found)}
    chosen = {}
    for found in data["chosen"]:
        key = found["shape"], found["rows"]
        forms = {name: from_json(form) for name, form in found["forms"].items()}
        # A head is behind all layers.
        chosen[key] = {n: form for n, form in forms.items() if key in faster or n == "head"}
    print("\n".join(table_lines(table_of(chosen))))


def _is_faster(layers: dict[str, Any]) -> bool:
    def best_us(table: str) -> float:
        return min(float(layers[case]["layer_us"]) for case in (table, f"{table}, early"))

    return best_us("new") < best_us("today") and layers["new"]["error"] < _LARGEST_ERROR


def main() -> None:
    began = time.monotonic()
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default="8b,1b,135m")
    parser.add_argument("--rows", default="64,8,256,16,32,128,1")
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=145)
    parser.add_argument("--check-seconds", type=float, default=80)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--print", type=Path, dest="printed")
    parser.add_argument("--check", help="PART,PARTS,FIRST: what its processes are called with")
    a = parser.parse_args()
    if a.printed is not None:
        print_table(a.printed)
        return
    shapes, rows_of = a.shapes.split(","), [int(rows) for rows in a.rows.split(",")]
    if a.check is not None:
        part, parts, first = map(int, a.check.split(","))
        with torch.inference_mode():
            check_part(candidates(shapes, rows_of), part, parts, first)
        return
    arguments = ["--shapes", a.shapes, "--rows", a.rows]
    right = check_all(arguments, a.processes, began + a.check_seconds)
    print(f"checked after {time.monotonic() - began:.0f} s", flush=True)
    tuning = Tuning(right, began + a.seconds, a.out)
    with torch.inference_mode():
        for rows, shape in itertools.product(rows_of, shapes):
            for measure in (tuning.time_products, tuning.time_layers):
                if tuning.is_over():
                    break
                try:
                    measure(shape, rows)
                except Exception as error:
                    print(f"{shape} {rows}: {error!r:.300}", flush=True)
    print(f"ended after {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
