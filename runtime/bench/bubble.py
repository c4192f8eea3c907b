"""What the engine adds to the device's own time of a decode step."""

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from typing import Final

from pillion.messages.control import ActorStatus
from pillion.runtime.bench.bare_steps import BareStepTimes, measure_bare_steps
from pillion.runtime.bench.engine import (
    client_of,
    geometry_of,
    private_daemon,
    random_prompt,
    seconds_per_step,
    status_of,
    timed,
    together,
)
from pillion.runtime.bench.report import Report
from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import DaemonProcess
from pillion.runtime.errors import ConfigError
from pillion.runtime.stats import STATS_INTERVAL_NS

# A replay and a run of the engine must have some steps in common.
LEAST_OUTPUT: Final = 16
_STAGES: Final = ("prepare_ns", "execute_ns", "output_ns")


def bubble(
    config: EngineConfig, batches: Sequence[int], num_input: int, num_output: int, repeats: int
) -> Report:
    """Time per decode step as clients see it, over back-to-back replays of the same graph with the same rows.

    Also the processor time that the worker spends on launching a step: what must fit beside the device's
    time. Raises ConfigError on a device without CUDA graphs.
    """
    if num_output < LEAST_OUTPUT:
        raise ConfigError(f"bubble needs answers of at least {LEAST_OUTPUT} tokens (--output-len)")
    if config.device == "cpu":
        raise ConfigError(
            "bubble compares with replays of CUDA graphs, and the CPU has none: choose a CUDA device"
        )
    # First the replays: both hold the memory of a whole engine.
    bare = measure_bare_steps(
        config, batches=batches, num_input=num_input, num_output=num_output, repeats=repeats
    )
    with private_daemon(config) as daemon:
        return bubble_of(daemon, bare, num_input, num_output, repeats)


def bubble_of(
    daemon: DaemonProcess, bare: BareStepTimes, num_input: int, num_output: int, repeats: int
) -> Report:
    """The same of a daemon that runs, beside replays of its graphs that were measured before it was started."""
    report = Report(
        f"bubble: {num_input} tokens in, {num_output} out, greedy; medians of {repeats}",
        ["batch", "step ms", "bare replay ms", "bubble", "worker CPU ms", "share of step"],
        plot_columns=("batch", "bubble", "worker CPU ms"),
    )
    rng = random.Random(0)
    vocab_size = geometry_of(daemon).vocab_size

    async def run() -> None:
        async with client_of(daemon) as client:
            await timed(client, random_prompt(rng, vocab_size, num_input), 8)
            for batch, replays_ms in bare.replay_ms.items():
                before = _worker(daemon)
                runs = [
                    await together(
                        client,
                        [random_prompt(rng, vocab_size, num_input) for _ in range(batch)],
                        num_output,
                    )
                    for _ in range(repeats)
                ]
                step_ms = statistics.median(seconds_per_step(run) for run in runs) * 1e3
                replay_ms = statistics.median(replays_ms)
                cpu_ms = cpu_ms_per_step(before, _worker(daemon))
                report.rows.append(
                    [batch, step_ms, replay_ms, step_ms / replay_ms, cpu_ms, cpu_ms / step_ms]
                )

    asyncio.run(run())
    report.details["replay_ms"] = bare.replay_ms
    report.details["device"] = bare.device
    return report


def _worker(daemon: DaemonProcess) -> ActorStatus:
    """The worker's counters, as new as they get: it reports them once a second."""
    time.sleep(1.2 * STATS_INTERVAL_NS / 1e9)
    (worker,) = (actor for actor in status_of(daemon).actors if actor.name == "gpu_worker")
    return worker


def cpu_ms_per_step(before: ActorStatus, after: ActorStatus) -> float:
    """Of preparing, launching and sending steps; waiting for the device is not in it."""
    steps = after.counters["steps"] - before.counters["steps"]
    spent_ns = sum(after.counters[stage] - before.counters[stage] for stage in _STAGES)
    return spent_ns / 1e6 / max(steps, 1)
