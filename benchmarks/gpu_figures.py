"""Start-up, bubble, first token and interference of the compared shapes on one card; the last three with one daemon.

usage: gpu_figures.py [--models 135m,1b,8b] [--device cuda] [--starts 3] [--repeats 3] [--output 512] [--out DIR]

Random weights. What `pillion bench startup`, `bubble`, `first-token` and `interference` measure, each once a model.
On a bare machine the first start of a model compiles its kernels, and is the first row. DIR/gpu_figures.json grows
with each report. On a CPU there is no bubble.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from peers.shapes import SHAPES, Shape, write_model

from pillion.runtime.bench.bare_steps import measure_bare_steps
from pillion.runtime.bench.bubble import bubble_of
from pillion.runtime.bench.cases import startup
from pillion.runtime.bench.engine import private_daemon
from pillion.runtime.bench.first_token import MOST_BARE, first_token_of, interference_of
from pillion.runtime.bench.report import Report
from pillion.runtime.config import EngineConfig, make_config

FIRST_TOKEN_REQUESTS = 200
LONG_PROMPT = 32768
NUM_INPUT = 128


def reports(config: EngineConfig, shape: Shape, a: argparse.Namespace) -> Iterator[Report]:
    """One after the other, as soon as each is there."""
    yield startup(config, a.starts)
    batches = [] if config.device == "cpu" else a.batches
    bare = measure_bare_steps(
        config,
        batches=batches,
        num_input=NUM_INPUT,
        num_output=a.output,
        prefills=[NUM_INPUT],
        repeats=a.repeats,
        prefill_repeats=min(a.requests, MOST_BARE),
    )
    with private_daemon(config) as daemon:
        if batches:
            yield bubble_of(daemon, bare, NUM_INPUT, a.output, a.repeats)
        yield first_token_of(daemon, bare, NUM_INPUT, a.requests)
        # Beside it the streams need room to go on.
        long_prompt = min(LONG_PROMPT, shape.max_positions // 2)
        yield interference_of(daemon, a.streams, long_prompt, a.repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default="135m,1b,8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=_numbers, default="1,8,64,256")
    parser.add_argument("--streams", type=_numbers, default="1,8")
    parser.add_argument("--output", type=int, default=512)
    parser.add_argument("--requests", type=int, default=FIRST_TOKEN_REQUESTS)
    parser.add_argument("--out", type=Path, default=Path("gpu-figures"))
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    found = []
    for key in a.models.split(","):
        folder = write_model(key, Path(tempfile.gettempdir()) / "pillion-figures")
        config = make_config({"model": str(folder), "load_format": "dummy", "device": a.device})
        for report in reports(config, SHAPES[key], a):
            print(f"{key} {report.text()}\n", flush=True)
            fields = {"title": report.title, "columns": report.columns, "rows": report.rows}
            found.append({"model": key, **fields, "details": report.details})
            (a.out / "gpu_figures.json").write_text(json.dumps(found, indent=1) + "\n")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


if __name__ == "__main__":
    main()
