"""What the HTTP server costs: many streams on a daemon whose worker answers at once, and one beside the library.

usage: python benchmarks/gateway_load.py [--streams 256] [--output 128] [--seconds 8] [--rounds 300]

Processes and sockets are real; the worker of tests/ring makes tokens without a model. The same load goes through the
client library and over HTTP, in turn. `gateway_cores` is the processor time of the one HTTP process under its load.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import uvloop
from peers.load import START_S, Answer, HttpTarget, LibraryTarget

from pillion.runtime.model_source import resolve_model

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "engine"))
from ring_daemon import NAME, RingDaemon  # noqa: E402

WARM_S = 1.0
WARM_ROUNDS = 20


def processor_s(pid: int) -> float:
    """The processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def first_tokens(address: str, model: str, rounds: int) -> dict[str, list[float]]:
    """Milliseconds to the first token of one stream on an idle daemon; library and HTTP in turn."""
    targets = {"library": LibraryTarget(NAME, 2), "http": HttpTarget(address, model, 2)}
    found: dict[str, list[float]] = {name: [] for name in targets}
    for number in range(WARM_ROUNDS + rounds):
        for name, target in targets.items():
            answer = Answer(time.perf_counter())
            await target.ask("a", answer)
            if number >= WARM_ROUNDS:
                found[name].append((answer.events[0] - answer.sent) * 1e3)
    targets["http"].close()  # type: ignore[union-attr]
    return found


def load(target: str, pid: int, a: argparse.Namespace) -> dict[str, Any]:
    """A closed loop of many streams, and the processor time of one process while its window is open."""
    spent = [0.0, 0.0]
    timers = [
        threading.Timer(after, lambda place=place: spent.__setitem__(place, processor_s(pid)))
        for place, after in enumerate((START_S + WARM_S, START_S + WARM_S + a.seconds))
    ]
    command = [sys.executable, "-m", "peers.load", target, "--model", a.served, "--input=32"]
    command += [f"--concurrency={a.streams}", f"--output={a.output}", f"--seconds={a.seconds}"]
    for timer in timers:
        timer.start()
    done = subprocess.run(
        [*command, f"--warm={WARM_S}"], cwd=ROOT / "benchmarks", check=True, stdout=subprocess.PIPE
    )
    for timer in timers:
        timer.join()
    found: dict[str, Any] = json.loads(done.stdout)
    found["requests_s"] = found["completed"] / a.seconds
    found["gateway_cores"] = (spent[1] - spent[0]) / a.seconds
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--step-us", type=int, default=0, help="how long a step takes")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pillion-", dir="/tmp") as root:
        os.environ["PILLION_RUNTIME_DIR"] = root
        daemon = RingDaemon(
            resolve_model("smollm2").path, Path(root), a.step_us, http="0", served_model_name="m"
        )
        try:
            gateway = daemon.actors()["gateway"]
            a.served, address = "m", str(gateway.gauges["http"])
            first_ms = uvloop.run(first_tokens(address, a.served, a.rounds))
            print(
                json.dumps(
                    {"idle first_ms": {k: statistics.median(v) for k, v in first_ms.items()}}
                )
            )
            for name, target in (("library", f"client:{NAME}"), ("http", address)):
                print(json.dumps({name: load(target, gateway.pid, a)}), flush=True)
        finally:
            daemon.close()


if __name__ == "__main__":
    main()
