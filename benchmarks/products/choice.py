"""From times to the table: who writes the residual stream and who reads it are chosen together."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Final

from products.product import PRODUCTS, SHAPES, Form, Library, sizes

from pillion.kernels.fused_linear.tiles import MEASURED, Choice, Kind, Tile, WideTile

# (shape, product, padded rows) -> the time of each form in microseconds
Times = dict[tuple[str, str, int], dict[Form, float]]
Table = dict[tuple[Kind, int, int], dict[int, Choice]]
# Whoever writes the stream, and the product behind the norm of it.
PAIRS: Final = (("output", "gated"), ("down", "qkv"))


def pair_us(writer: Form, reader: Form, us: tuple[float, float], scale_us: float) -> float | None:
    """The time of both; None where they don't go together."""
    writes_scaled = isinstance(writer, WideTile)
    if isinstance(reader, Library) and reader.scaled != writes_scaled:
        return None
    alone = isinstance(reader, WideTile) and not writes_scaled
    return sum(us) + (scale_us if alone else 0.0)


def best_forms(
    times: Times, scale_us: Mapping[tuple[str, int], float], shape: str, rows: int
) -> dict[str, Form]:
    """The form of each product that has been timed with its partner."""
    found: dict[str, Form] = {}
    for writer, reader in PAIRS:
        written, read = times.get((shape, writer, rows)), times.get((shape, reader, rows))
        if not written or not read:
            continue
        best: tuple[float, Form, Form] | None = None
        for (w, w_us), (r, r_us) in itertools.product(written.items(), read.items()):
            total = pair_us(w, r, (w_us, r_us), scale_us.get((shape, rows), 2.0))
            if total is not None and (best is None or total < best[0]):
                best = total, w, r
        if best is not None:
            found[writer], found[reader] = best[1:]
    head = times.get((shape, "head", rows))
    if head:
        found["head"] = min(head, key=lambda form: head[form])
    return found


def kind_of(form: Form) -> str:
    """How a form works, in a word."""
    if isinstance(form, WideTile):
        return "equal" if form.programs > 0 else "wide"
    return "skinny" if isinstance(form, Tile) else "library"


def as_choice(form: Form | None) -> Choice:
    """As tiles.py has it."""
    return None if isinstance(form, Library) else form


def table_of(chosen: Mapping[tuple[str, int], Mapping[str, Form | None]]) -> Table:
    """Today's table with what was chosen for (shape, rows)."""
    table = {key: dict(found) for key, found in MEASURED.items()}
    for (shape, rows), forms in chosen.items():
        for name, form in forms.items():
            n, k = sizes(SHAPES[shape], name)
            table.setdefault((PRODUCTS[name], n, k), {})[rows] = as_choice(form)
    return table


def table_lines(table: Table) -> Iterable[str]:
    """The table as Python."""
    for key, found in table.items():
        yield f'    ("{key[0]}", {key[1]}, {key[2]}): {{'
        for rows, form in sorted(found.items()):
            yield f"        {rows}: {short(form)},"
        yield "    },"


def short(form: Choice) -> str:
    """Without what is as usual."""
    if form is None:
        return "None"
    values = list(form)
    defaults = type(form)._field_defaults
    while form._fields[len(values) - 1] in defaults and (
        values[-1] == defaults[form._fields[len(values) - 1]]
    ):
        values.pop()
    return f"{type(form).__name__}({', '.join(map(str, values))})"


def to_json(form: Form | None) -> list[Any]:
    """For a file."""
    form = form or Library(scaled=False)
    return [type(form).__name__, *form]


def from_json(data: list[Any]) -> Form:
    """Back from `to_json`."""
    kinds: dict[str, Any] = {"Tile": Tile, "WideTile": WideTile, "Library": Library}
    form: Form = kinds[data[0]](*data[1:])
    return form
