"""What a comparison is asked to do."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peers.schedule import Cell
from peers.servers import COMMANDS
from peers.shapes import PREFILL_TOKENS, SHAPES

CASES = ("decode", "mixed", "prefill", "serve")


@dataclass(frozen=True)
class Options:
    models: list[list[str]]  # groups that are loaded together
    engines: list[str]
    sites: dict[str, str]
    scripts: dict[str, str]  # of engines that are none of ours
    cases: list[str]
    batches: list[int]
    concurrency: list[int]
    num_input: int
    num_output: int
    seconds: float
    rounds: int
    serve_rounds: int
    serve_models: list[str]
    serve_engines: list[str]
    budget: float
    patience: float
    warm_mixed: bool
    apart: bool  # servers are loaded when the engines have ended
    kv_tokens: dict[str, int]  # by engine; "" is for all others
    device: str
    out: Path
    plot: bool

    def is_served(self, model: str) -> bool:
        """Whether this model's servers are measured."""
        return "serve" in self.cases and (not self.serve_models or model in self.serve_models)

    def rounds_of(self, cell: Cell) -> int:
        return self.serve_rounds if cell.is_served else self.rounds

    def cells(self, models: Sequence[str]) -> list[Cell]:
        """All cells of some models, the most telling cases first."""
        cases = [f"decode {batch}" for batch in self.batches if "decode" in self.cases]
        cases += [case for case in ("mixed", "prefill") if case in self.cases]
        served = [engine for engine in self.serve_engines if engine in COMMANDS]
        ways = ["pillion"] if "pillion" in served else []
        ways += [f"{engine} over HTTP" for engine in served]
        found = []
        for model in models:
            fits = SHAPES[model].max_model_len > PREFILL_TOKENS
            for case in cases:
                if case != "prefill" or fits:
                    found += [Cell(model, case, engine) for engine in self.engines]
            if self.is_served(model):
                found += [Cell(model, f"serve {c}", way) for c in self.concurrency for way in ways]
        return found


def parse(description: str, argv: list[str] | None = None) -> Options:
    """Reads the command line; what is wrong ends the program with a word on it."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--models", default="135m+1b,8b", help="joined by +: loaded together")
    parser.add_argument("--engines", type=_words, default="pillion,vllm,sglang")
    parser.add_argument("--site", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--script", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--cases", type=_words, default=",".join(CASES))
    parser.add_argument("--batches", type=_numbers, default="1,8,64,256")
    parser.add_argument("--concurrency", type=_numbers, default="1,64,256")
    parser.add_argument("--input", type=int, default=128)
    parser.add_argument("--output", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=6.0, help="window of a load on a server")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve-rounds", type=int, help="rounds of serve, if not --rounds")
    parser.add_argument("--serve-models", type=_words, default="", help="if not all")
    parser.add_argument("--serve-engines", type=_words, help="if not --engines")
    parser.add_argument("--apart", action="store_true", help="servers when the engines have ended")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds for everything")
    parser.add_argument("--patience", type=float, default=300.0, help="for a start or an answer")
    parser.add_argument("--warm-mixed", action="store_true", help="one mixed load uncounted")
    parser.add_argument("--kv-tokens", type=_words, default="", help="N, or NAME=N for some")
    parser.add_argument("--device", default="auto", help="Pillion's device setting")
    parser.add_argument("--out", type=Path, default=Path("vs-peers"))
    parser.add_argument("--plot", action="store_true")
    a = parser.parse_args(argv)
    models = [group.split("+") for group in a.models.split(",")]
    if unknown := [key for group in models for key in group if key not in SHAPES]:
        parser.error(f"there is no shape {unknown[0]}; there are {', '.join(SHAPES)}")
    if unknown := [case for case in a.cases if case not in CASES]:
        parser.error(f"there is no case {unknown[0]}; there are {', '.join(CASES)}")
    scripts = _pairs(a.script)
    if unknown := [name for name in a.engines if name not in COMMANDS and name not in scripts]:
        parser.error(f"{unknown[0]} is none of {', '.join(COMMANDS)} and has no --script")
    return Options(
        models=models,
        engines=a.engines,
        sites=_pairs(a.site),
        scripts=scripts,
        cases=a.cases,
        batches=a.batches,
        concurrency=a.concurrency,
        num_input=a.input,
        num_output=a.output,
        seconds=a.seconds,
        rounds=a.rounds,
        serve_rounds=a.rounds if a.serve_rounds is None else a.serve_rounds,
        serve_models=a.serve_models,
        serve_engines=a.engines if a.serve_engines is None else a.serve_engines,
        budget=a.budget,
        patience=a.patience,
        warm_mixed=a.warm_mixed,
        apart=a.apart,
        kv_tokens={name: int(number) for name, number in _pairs(a.kv_tokens).items()},
        device=a.device,
        out=a.out,
        plot=a.plot,
    )


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _numbers(text: str) -> list[int]:
    return [int(word) for word in _words(text)]


def _pairs(texts: list[str]) -> dict[str, str]:
    """NAME=VALUE; a value without a name stands under the empty name."""
    return {name: value for name, _, value in (text.rpartition("=") for text in texts)}
