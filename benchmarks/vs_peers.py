"""Pillion beside vLLM and SGLang on one card, in turn.

usage: vs_peers.py [--models 135m+1b,8b] [--engines pillion,vllm,sglang] [--site vllm=DIR --site sglang=DIR]
                   [--cases decode,mixed,prefill,serve] [--rounds 3] [--budget SECONDS]
                   [--kv-tokens N,NAME=N,...] [--out DIR] [--plot]

Every engine runs in a process and a site (a folder of packages) of its own. Models joined by + are loaded
together, all engines of them at once; then they are measured in turn, round by round, while the others
stand still. So a machine that gets slower gets slower for all. Since they share the card, `--kv-tokens` says
how many tokens the KV cache of each holds; it must be as many as a case needs, for then more change nothing.

decode   `--input` tokens in, `--output` out, for each of `--batches`: time per step after the first token
mixed    256 requests at once, input and output uniform 100 to 1,024: output tokens per second
prefill  16 prompts of 8,192 tokens: input tokens per second
serve    text in and out, 128 tokens each, closed loop at each of `--concurrency`: tokens per second and time
         to the first token; Pillion through its client library and over HTTP, the others over HTTP

Each cell is measured once, then all of them again until `--rounds` are done; servers come last in each round, at
`--serve-models` of `--serve-engines` alone if these are given, and with `--apart` they are loaded when the engines have
ended, which leaves them their memory. What a cell needs for the first time is used before its first sample.

Samples are kept in DIR/samples.json as they come. A later call on the same machine takes up where this one
ended; samples of other machines are never compared. `--script NAME=FILE` adds an engine: FILE speaks
what peers/child.py speaks.
"""

import signal
import sys
import time
from collections.abc import Iterator, Sequence

from peers import results
from peers.options import Options, parse
from peers.processes import ProcessFailed
from peers.results import Sample, Samples
from peers.rig import Rig
from peers.schedule import Cell, Schedule


def run_group(cells: Sequence[Cell], options: Options, samples: Samples, deadline: float) -> None:
    """Loads what some cells need and measures until all rounds are done or time is up."""
    schedule = Schedule(cells, options.rounds_of, deadline, lambda cell: len(samples.of(cell.key)))
    left = [cell for cell in cells if not schedule.is_done(cell)]
    if schedule.left_s() > 0 and left:
        rig = Rig(left, options, deadline)
        try:
            for cell in left:
                if not rig.has(cell):
                    schedule.drop(cell, "its engine is not loaded")
            _measure(rig, schedule, samples)
        finally:
            rig.close()
    for cell in cells:
        if not schedule.is_done(cell):
            reason = schedule.dropped.get(cell, "no time left")
            print(f"missing: {cell.model} {cell.case} {cell.engine}: {reason}", flush=True)


def groups(options: Options) -> Iterator[Sequence[Cell]]:
    """The cells whose engines are loaded together."""
    for models in options.models:
        cells = options.cells(models)
        if options.apart:
            yield [cell for cell in cells if not cell.is_served]
            yield [cell for cell in cells if cell.is_served]
        else:
            yield cells


def _measure(rig: Rig, schedule: Schedule, samples: Samples) -> None:
    warm: set[Cell] = set()
    while (cell := schedule.next()) is not None:
        try:
            if cell not in warm:
                rig.warm_up(cell)
                warm.add(cell)
            started = time.monotonic()
            found = rig.measure(cell)
        except ProcessFailed as error:
            schedule.drop(cell, str(error))
            continue
        schedule.took(cell, time.monotonic() - started)
        for case, value, unit, details in found:
            sample = samples.add((cell.model, case, cell.engine), value, unit, details)
            print(f"[{schedule.left_s():4.0f} s left] {_line(sample)}", flush=True)


def _line(sample: Sample) -> str:
    return f"{sample.model} {sample.case}: {sample.engine} {sample.value:.4g} {sample.unit}"


def main(argv: list[str] | None = None) -> int:
    deadline_from = time.monotonic()
    # The engines live in sessions of their own, so nobody else would end them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = parse("Pillion beside vLLM and SGLang on one card, in turn.", argv)
    samples = Samples(options.out, results.this_machine())
    try:
        for cells in groups(options):
            run_group(cells, options, samples, deadline_from + options.budget)
    finally:
        text = results.table(samples.here())
        (options.out / "table.md").write_text(text)
        print("\n" + text + "\n" + results.lines(samples.here()), flush=True)
    if options.plot and samples.here():
        results.plot(samples.here(), options.out / "plot.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
