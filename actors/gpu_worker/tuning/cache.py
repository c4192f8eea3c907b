"""What was measured on this machine, kept for later starts: a file for each model shape and card."""

import hashlib
import importlib.metadata
import json
import logging
import os
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pillion
from pillion.actors.gpu_worker.tuning.forms import ahead
from pillion.actors.gpu_worker.tuning.plan import TuningPlan
from pillion.kernels.fused_linear.tiles import Choice
from pillion.runtime.paths import cache_root

logger = logging.getLogger(__name__)

# (name of the product, padded rows) -> its form
Chosen = dict[tuple[str, int], Choice]


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome of a tuning."""

    chosen: Chosen
    # for each number of rows, microseconds of a layer before and after
    layer_us: dict[int, tuple[float, float]]
    # that the tuning was given, if they were too few
    short_s: float | None = None


def read_tuned(plan: TuningPlan, seconds: float) -> Tuned | None:
    """What an earlier start found; None if there was none, or if its time was too short and less than now."""
    try:
        path = _path(plan)
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError, ValueError) as error:
        logger.warning("tuned kernels cannot be read and are tuned anew: %s", error)
        return None
    try:
        tuned = _from_json(plan, data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        logger.warning("%s is damaged or not ours, and is made anew: %r", path, error)
        return None
    return None if tuned.short_s is not None and tuned.short_s < seconds else tuned


def write_tuned(plan: TuningPlan, tuned: Tuned) -> None:
    """Keeps it for later starts: whole or not at all, whoever else writes the same."""
    temporary = None
    try:
        path = _path(plan)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = json.dumps(_to_json(plan, tuned), indent=1).encode()
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            temporary = file.name
            file.write(data)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        logger.warning("tuned kernels cannot be kept, so the next start tunes again: %s", error)


def _path(plan: TuningPlan) -> Path:
    digest = hashlib.sha256(json.dumps(_key(plan)).encode()).hexdigest()
    return cache_root() / "tuning" / f"{digest[:16]}.json"


def _key(plan: TuningPlan) -> dict[str, Any]:
    """Everything that times depend on, as JSON gives it back."""
    return {
        "card": [plan.card.name, list(plan.card.capability), *plan.card[2:]],
        "dtype": str(plan.dtype),
        "heads": [plan.heads.num_q_heads, plan.heads.num_kv_heads, plan.heads.head_dim],
        "products": [list(product) for product in plan.products],
        "row_classes": list(plan.row_classes),
        "torch": importlib.metadata.version("torch"),
        "triton": importlib.metadata.version("triton"),
        "sources": _source_digest(),
    }


@cache
def _source_digest() -> str:
    """Of the kernels and of what chooses among them."""
    home = Path(pillion.__file__).parent
    digest = hashlib.sha256()
    for folder in ("kernels", "actors/gpu_worker/tuning"):
        for source in sorted((home / folder).resolve().rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _to_json(plan: TuningPlan, tuned: Tuned) -> dict[str, Any]:
    return {
        "key": _key(plan),
        "short_s": tuned.short_s,
        "layer_us": [[rows, *us] for rows, us in tuned.layer_us.items()],
        "chosen": [
            {"product": name, "rows": rows, "form": _form_to_json(choice)}
            for (name, rows), choice in tuned.chosen.items()
        ],
    }


def _form_to_json(choice: Choice) -> dict[str, Any] | None:
    return None if choice is None else {"type": type(choice).__name__, **choice._asdict()}


def _from_json(plan: TuningPlan, data: dict[str, Any]) -> Tuned:
    """Raises ValueError for a form that this program would not try, and others for what is no such file."""
    if data["key"] != _key(plan):
        raise ValueError("another model, card or version")
    products = {product.name: product for product in plan.products}
    chosen: Chosen = {}
    for found in data["chosen"]:
        name, rows = found["product"], found["rows"]
        product = products[name]
        if rows not in plan.row_classes:
            raise ValueError(f"{rows} rows")
        possible = [
            choice
            for form in plan.forms(product, rows)
            for choice in (form.choice, *ahead(form.choice, product.k))
        ]
        fitting = [choice for choice in possible if _form_to_json(choice) == found["form"]]
        if not fitting:
            raise ValueError(f"no form of {name} for {rows} rows is {found['form']}")
        chosen[name, rows] = fitting[0]
    layer_us = {
        int(rows): (float(before), float(after)) for rows, before, after in data["layer_us"]
    }
    short_s = data["short_s"]
    return Tuned(chosen, layer_us, None if short_s is None else float(short_s))
