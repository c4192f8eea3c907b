"""`pillion chaos`: kills a daemon's processes under load and looks whether any answer suffers."""

import argparse
import sys
from pathlib import Path

from pillion.runtime.chaos.run import ChaosSettings, run_chaos
from pillion.runtime.config import make_config
from pillion.runtime.errors import ConfigError

_STRUCK = ChaosSettings().actors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `pillion chaos`."""
    usual = ChaosSettings()
    parser.add_argument("--model", default="smollm2", help="directory, .gguf file, hub id or alias")
    parser.add_argument("--config", type=Path, help="TOML file with engine settings")
    parser.add_argument("--device", default="cpu", help='"auto", "cpu", "cuda" or "cuda:0"')
    parser.add_argument(
        "--dtype",
        default="float32",
        help="with fewer bits an answer may change with the batch that it is computed in",
    )
    parser.add_argument("--seed", type=int, default=usual.seed, help="of requests and schedule")
    parser.add_argument("--requests", type=int, default=usual.num_requests)
    parser.add_argument(
        "--distinct", type=int, default=usual.num_distinct, help="different ones among them"
    )
    parser.add_argument("--kills", type=int, default=usual.num_strikes, help="stops included")
    parser.add_argument(
        "--stop-share",
        type=float,
        default=usual.stop_share,
        help="of the strikes, those that only stop a process and leave it to be found",
    )
    parser.add_argument("--actors", default=",".join(_STRUCK), help="whom to strike")
    parser.add_argument("--window", type=int, default=usual.window, help="requests open at once")
    parser.add_argument("--max-num-seqs", type=int, default=12, help="sequences that run at once")
    parser.add_argument(
        "--stall-limit",
        type=float,
        default=3.0,
        help="seconds after which a stopped process is found",
    )
    parser.add_argument("--output-len", type=int, default=usual.max_tokens, help="most tokens")
    parser.add_argument(
        "--stuck-after", type=float, default=usual.stuck_after_s, help="seconds without anything"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there too")


def run(arguments: argparse.Namespace) -> int:
    """Runs and prints; status 1 if anything was wrong. Raises PillionError."""
    actors = tuple(arguments.actors.split(","))
    unknown = set(actors) - set(_STRUCK)
    if unknown:
        raise ConfigError(f"--actors takes {', '.join(_STRUCK)}, got {sorted(unknown)[0]!r}")
    if not 1 <= arguments.distinct <= arguments.requests or arguments.kills < 0:
        raise ConfigError("--distinct must lie between 1 and --requests, --kills not below 0")
    settings = ChaosSettings(
        seed=arguments.seed,
        num_requests=arguments.requests,
        num_distinct=arguments.distinct,
        num_strikes=arguments.kills,
        stop_share=arguments.stop_share,
        actors=actors,
        window=arguments.window,
        max_tokens=arguments.output_len,
        stuck_after_s=arguments.stuck_after,
    )
    config = make_config(
        {
            "model": arguments.model,
            "device": arguments.device,
            "dtype": arguments.dtype,
            "max_num_seqs": arguments.max_num_seqs,
            "stall_limit_s": arguments.stall_limit,
            "step_limit_s": 2 * arguments.stall_limit,
        },
        arguments.config,
    )
    report = run_chaos(config, settings, lambda line: print(line, file=sys.stderr, flush=True))
    print(report.text())
    if arguments.json is not None:
        report.write_json(arguments.json)
    return 0 if report.is_right else 1
