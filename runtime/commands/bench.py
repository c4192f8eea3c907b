"""`pillion bench`: what this machine does with a model, beside what its hardware could do at most."""

import argparse
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pillion.runtime.bench import cases
from pillion.runtime.bench.bubble import bubble
from pillion.runtime.bench.first_token import first_token, interference
from pillion.runtime.bench.report import Report
from pillion.runtime.config import EngineConfig, make_config
from pillion.runtime.errors import ConfigError

CASES: Final[dict[str, str]] = {
    "latency": "batches that start together: first token, time per token",
    "throughput": "requests of random lengths, all at once: tokens per second",
    "startup": "process start to ready and to the first token, phase by phase",
    "idle": "processor time and memory of each actor while nothing runs",
    "bubble": "a decode step over the bare replay of its CUDA graph, and the worker's CPU time",
    "first-token": "one prompt on an idle engine, over the same prefill alone",
    "interference": "gaps of running streams while a long prompt is read",
    "ring": "what the processes around the device add to the first token",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `pillion bench`."""
    cases_help = "; ".join(f"{name}: {text}" for name, text in CASES.items())
    parser.add_argument("case", choices=CASES, help=cases_help)
    parser.add_argument("--model", default="smollm2", help="directory, .gguf file, hub id or alias")
    parser.add_argument("--config", type=Path, help="TOML file with engine settings")
    parser.add_argument("--device", help='"auto", "cpu", "cuda" or "cuda:0"')
    parser.add_argument("--dtype", help="type of weights and activations")
    parser.add_argument("--cpu-threads", type=int, help="threads of the CPU device")
    parser.add_argument("--max-num-seqs", type=int, help="sequences that run at once")
    parser.add_argument("--load-format", help='"dummy": random weights from a config.json alone')
    parser.add_argument(
        "--batch",
        default="1,8,32",
        help="batch sizes of latency and bubble, streams of interference",
    )
    parser.add_argument("--input-len", type=int, default=128, help="prompt tokens")
    parser.add_argument(
        "--output-len", type=int, default=128, help="answer tokens of latency and bubble"
    )
    parser.add_argument(
        "--requests", type=int, help="requests of throughput (32), ring and first-token (200)"
    )
    parser.add_argument("--shortest", type=int, default=16, help="least tokens of throughput")
    parser.add_argument("--longest", type=int, default=128, help="most tokens of throughput")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of idle")
    parser.add_argument(
        "--cold", action="store_true", help="startup without kernels that are compiled already"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there too")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw a picture (needs matplotlib)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints. Raises PillionError."""
    _check(arguments)
    config = make_config(
        {
            "model": arguments.model,
            "device": arguments.device,
            "dtype": arguments.dtype,
            "cpu_threads": arguments.cpu_threads,
            "max_num_seqs": arguments.max_num_seqs,
            "load_format": arguments.load_format,
        },
        arguments.config,
    )
    report = _runner(arguments, config)()
    print(report.text())
    if arguments.json is not None:
        report.write_json(arguments.json)
    if arguments.plot is not None:
        report.plot(arguments.plot)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raises ConfigError for a number with which nothing can be measured, and for results that could not be kept."""
    for name in ("input_len", "output_len", "requests", "shortest", "longest", "repeats"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if arguments.shortest > arguments.longest:
        raise ConfigError(
            f"--shortest is {arguments.shortest}, which is above --longest, {arguments.longest}"
        )
    if not 0 < arguments.seconds < math.inf:
        raise ConfigError(f"--seconds must be above 0, got {arguments.seconds}")
    for file in (arguments.json, arguments.plot):
        if file is not None and not file.parent.is_dir():
            raise ConfigError(f"{file} cannot be written: there is no directory {file.parent}")
    if arguments.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'pillion[plot]'")


def _runner(arguments: argparse.Namespace, config: EngineConfig) -> Callable[[], Report]:
    repeats = arguments.repeats
    match arguments.case:
        case "latency":
            batches = _batches(arguments.batch)
            lengths = arguments.input_len, arguments.output_len
            return lambda: cases.latency(config, batches, *lengths, repeats)
        case "throughput":
            bounds = arguments.shortest, arguments.longest
            return lambda: cases.throughput(config, arguments.requests or 32, *bounds, repeats)
        case "startup":
            return lambda: cases.startup(config, repeats, cold=arguments.cold)
        case "bubble":
            batches = _batches(arguments.batch)
            lengths = arguments.input_len, arguments.output_len
            return lambda: bubble(config, batches, *lengths, repeats)
        case "first-token":
            return lambda: first_token(config, arguments.input_len, arguments.requests or 200)
        case "interference":
            batches = _batches(arguments.batch)
            return lambda: interference(config, batches, arguments.input_len, repeats)
        case "idle":
            return lambda: cases.idle(config, arguments.seconds)
        case _:
            return lambda: cases.ring(config, arguments.requests or 200)


def _batches(text: str) -> list[int]:
    try:
        batches = [int(number) for number in text.split(",")]
    except ValueError:
        batches = []
    if not batches or min(batches) < 1:
        raise ConfigError(f"--batch takes sizes such as 1,8,32, got {text!r}")
    return batches
