"""Compiles every candidate and compares it with the reference, in processes of their own.

A candidate that crashes the device takes one process along, which begins again behind it; what hangs is ended with its
process at the deadline.
"""

import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import torch
from products.candidates import equal_tiles, wide_tiles
from products.choice import from_json, to_json
from products.layers import Layers
from products.product import (
    PRODUCTS,
    SHAPES,
    Form,
    Library,
    Product,
    form_of_more,
    form_today,
    sizes,
)

from pillion.kernels.fused_linear.tiles import MEASURED, WideTile

_LARGEST_ERROR: Final = 1.5e-2
_SAY_EVERY_S: Final = 20
# Lines about what is wrong.
_MOST_SAID: Final = 12


class Candidate(NamedTuple):
    """One form of one product for so many padded rows; without a form: a layer as it is today."""

    shape: str
    name: str
    rows: int
    form: Form | None


def candidates(
    shapes: Sequence[str], rows_of: Sequence[int], names: Sequence[str] = tuple(PRODUCTS)
) -> list[list[Candidate]]:
    """All forms of some products, in groups that have a compiled kernel in common."""
    groups: dict[object, list[Candidate]] = {}
    for rows, shape in itertools.product(rows_of, shapes):
        found = SHAPES[shape]
        for name in names:
            kind = PRODUCTS[name]
            n, k = sizes(found, name)
            forms: list[Form] = [
                form_today(found, name, rows),
                form_of_more(found, name, rows),
                Library(scaled=False),
            ]
            if name in ("qkv", "gated"):
                forms.append(Library(scaled=True))
            for form in dict.fromkeys(forms):
                key: object = (shape, name, rows, form)
                groups.setdefault(key, []).append(Candidate(shape, name, rows, form))
            sized = (kind, n, k, rows, found.head_dim)
            tiles = [*equal_tiles(*sized), *wide_tiles(*sized)] if rows > 1 else []
            for tile in tiles:
                kernel = tile._replace(programs=min(tile.programs, 1))
                key = (kind, found.head_dim if kind == "qkv" else 0, kernel)
                groups.setdefault(key, []).append(Candidate(shape, name, rows, tile))
        groups["layer", shape, rows] = [Candidate(shape, "layer", rows, None)]
    # What everything else is compared with comes first, in case time runs out.
    return sorted(groups.values(), key=lambda group: isinstance(group[0].form, WideTile))


@functools.lru_cache(maxsize=3)
def _product(shape: str, name: str, rows: int) -> Product:
    return Product(SHAPES[shape], name, rows, copies=1)


def _error(candidate: Candidate) -> float:
    shape, name, rows, form = candidate
    if form is None:
        layers = Layers(SHAPES[shape], rows, num_layers=2)
        streams = [layers.measure(MEASURED, early=early)[1] for early in (False, True)]
        return float((streams[0] - streams[1]).abs().max())
    return _product(shape, name, rows).error(form)


def check_part(groups: list[list[Candidate]], part: int, parts: int, first: int) -> None:
    """Prints a line for each candidate of this part, from its group `first` on; exits if the device is lost."""
    for index, group in enumerate(groups[part::parts]):
        if index < first:
            continue
        print(json.dumps({"group": index}), flush=True)
        for candidate in group:
            line = {"key": [*candidate[:3], candidate.form and to_json(candidate.form)]}
            try:
                line["error"] = _error(candidate)
            except Exception as error:
                line["failed"] = f"{error!r:.160}"
            print(json.dumps(line), flush=True)
            try:
                torch.cuda.synchronize()
            except Exception:
                os._exit(3)


class _Part:
    """A process, begun again behind what has crashed it."""

    def __init__(self, command: Sequence[str], folder: Path, part: int, parts: int) -> None:
        self._command, self._part, self._parts = command, part, parts
        self.log = folder / f"{part}.jsonl"
        self._begin(0)

    def _begin(self, first: int) -> None:
        with self.log.open("a") as log:
            place = f"{self._part},{self._parts},{first}"
            self.process = subprocess.Popen([*self._command, "--check", place], stdout=log)

    def lines(self) -> list[dict[str, object]]:
        """What it has said so far."""
        whole = [line for line in self.log.read_text().splitlines() if line.endswith("}")]
        return [json.loads(line) for line in whole]

    def has_ended(self) -> bool:
        code = self.process.poll()
        if code is None:
            return False
        if code == 0:
            return True
        groups = [line["group"] for line in self.lines() if "group" in line]
        print(f"process {self._part} ended with {code} in its group {groups[-1:]}", flush=True)
        if not groups:
            return True
        self._begin(int(str(groups[-1])) + 1)
        return False


def check_all(arguments: Sequence[str], parts: int, deadline: float) -> set[Candidate]:
    """The candidates that are right. `arguments` are those of this program."""
    command = [sys.executable, sys.argv[0], *arguments]
    with tempfile.TemporaryDirectory() as folder:
        running = [_Part(command, Path(folder), part, parts) for part in range(parts)]
        said = time.monotonic()
        while time.monotonic() < deadline:
            ended = [part.has_ended() for part in running]
            if all(ended):
                break
            if time.monotonic() - said > _SAY_EVERY_S:
                said = time.monotonic()
                num_lines = sum("key" in line for part in running for line in part.lines())
                print(f"{num_lines} candidates checked", flush=True)
            time.sleep(0.2)
        for part in running:
            if part.process.poll() is None:
                print("out of time: the rest is not measured", flush=True)
                part.process.kill()
            part.process.wait()
        lines = [line for part in running for line in part.lines() if "key" in line]
    right, wrong = set(), []
    for line in lines:
        shape, name, rows, form = line["key"]  # type: ignore[misc]
        candidate = Candidate(shape, name, rows, None if form is None else from_json(form))
        error = line.get("error")
        if isinstance(error, float) and error <= _LARGEST_ERROR:
            right.add(candidate)
        else:
            wrong.append(f"not right: {tuple(candidate)} {line.get('failed', error)}")
    print("\n".join(wrong[:_MOST_SAID]), flush=True)
    print(f"{len(right)} of {len(lines)} candidates are right", flush=True)
    return right
