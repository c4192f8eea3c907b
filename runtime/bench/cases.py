"""The benchmarks of `pillion bench`."""

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

from pillion.messages.control import DaemonStatus
from pillion.runtime.bench.engine import (
    client_of,
    geometry_of,
    kernel_cache,
    private_daemon,
    random_prompt,
    seconds_per_step,
    status_of,
    timed,
    together,
)
from pillion.runtime.bench.limits import DeviceLimits, measure_limits
from pillion.runtime.bench.report import Report, quantile
from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import DaemonProcess

IDLE_SETTLE_S: Final = 2.0


def latency(
    config: EngineConfig, batches: Sequence[int], num_input: int, num_output: int, repeats: int
) -> Report:
    """Batches that start together: time to the first token, and time per token after it."""
    report = Report(
        f"latency: {num_input} tokens in, {num_output} out, greedy; medians of {repeats}",
        [
            "batch",
            "first token ms",
            "ms/token",
            "tok/s",
            "prefill tok/s",
            "limit ms/token",
            "share of limit",
        ],
        plot_columns=("batch", "ms/token", "tok/s"),
    )
    rng = random.Random(0)
    with private_daemon(config) as daemon:
        geometry = geometry_of(daemon)
        limits = measure_limits(geometry, config.cpu_threads)

        async def run() -> None:
            async with client_of(daemon) as client:
                await timed(client, random_prompt(rng, geometry.vocab_size, num_input), 8)
                for batch in batches:
                    runs = []
                    for _ in range(repeats):
                        prompts = [
                            random_prompt(rng, geometry.vocab_size, num_input) for _ in range(batch)
                        ]
                        runs.append(await together(client, prompts, num_output))
                    first_s = statistics.median(max(t.first_token_s for t in run) for run in runs)
                    step_s = statistics.median(seconds_per_step(run) for run in runs)
                    context = num_input + num_output // 2
                    limit_s = limits.step_s(geometry, batch, batch * context)
                    report.rows.append(
                        [batch, first_s * 1e3, step_s * 1e3, batch / step_s, batch * num_input / first_s,
                         limit_s * 1e3, limit_s / step_s]
                    )  # fmt: skip

        asyncio.run(run())
        _describe(report, status_of(daemon), limits)
    return report


def throughput(
    config: EngineConfig, num_requests: int, shortest: int, longest: int, repeats: int
) -> Report:
    """Requests of uniformly random lengths, all sent at once: tokens per second until the last is done."""
    report = Report(
        f"throughput: {num_requests} requests, input and output uniform {shortest}..{longest}, greedy",
        [
            "run",
            "seconds",
            "input tok",
            "output tok",
            "output tok/s",
            "total tok/s",
            "share of limit",
        ],
        plot_columns=("run", "output tok/s"),
    )
    with private_daemon(config) as daemon:
        geometry = geometry_of(daemon)
        limits = measure_limits(geometry, config.cpu_threads)

        async def run() -> None:
            async with client_of(daemon) as client:
                for number in range(repeats):
                    rng = random.Random(number)
                    shapes = [
                        (rng.randint(shortest, longest), rng.randint(shortest, longest))
                        for _ in range(num_requests)
                    ]
                    prompts = [random_prompt(rng, geometry.vocab_size, n) for n, _ in shapes]
                    start = time.perf_counter()
                    await asyncio.gather(
                        *(
                            timed(client, p, out)
                            for p, (_, out) in zip(prompts, shapes, strict=True)
                        )
                    )
                    seconds = time.perf_counter() - start
                    num_in, num_out = sum(n for n, _ in shapes), sum(out for _, out in shapes)
                    width = min(num_requests, geometry.max_num_seqs)
                    context = (shortest + longest) * 3 // 4
                    least = num_out / width * limits.step_s(geometry, width, width * context)
                    least += 2 * geometry.num_parameters * num_in / limits.flop_per_s
                    report.rows.append(
                        [number, seconds, num_in, num_out, num_out / seconds,
                         (num_in + num_out) / seconds, least / seconds]
                    )  # fmt: skip

        asyncio.run(run())
        _describe(report, status_of(daemon), limits)
    return report


def startup(config: EngineConfig, repeats: int, *, cold: bool = False) -> Report:
    """From starting the process to the first token, and where the time goes.

    Each `cold` start finds no compiled kernels.
    """
    report = Report(
        "start-up: seconds from process start" + (", kernels not compiled" if cold else ""),
        ["run", "ready s", "first token s"],
        plot_columns=("run", "ready s", "first token s"),
    )
    phases: dict[str, list[float]] = {}
    for number in range(repeats):
        start = time.perf_counter()
        with kernel_cache(empty=cold), private_daemon(config, captured=False) as daemon:
            ready_s = time.perf_counter() - start
            asyncio.run(_one_answer(daemon, 1))
            report.rows.append([number, ready_s, time.perf_counter() - start])
            status = status_of(daemon)
        for actor, phase, milliseconds in status.start_phases:
            phases.setdefault(f"{actor}: {phase}", []).append(milliseconds)
    for name, values in phases.items():
        report.notes.append(f"  {name:32} {statistics.median(values):8.0f} ms")
    report.details["phases_ms"] = phases
    return report


def idle(config: EngineConfig, seconds: float) -> Report:
    """What the daemon costs when nobody asks anything: processor time and memory of each actor."""
    report = Report(
        f"idle: {seconds:g} s without a request",
        ["actor", "% of a core", "resident MB"],
        plot_columns=("actor", "resident MB"),
    )
    with private_daemon(config) as daemon:
        asyncio.run(_one_answer(daemon, 4))
        time.sleep(IDLE_SETTLE_S)
        before = status_of(daemon)
        time.sleep(seconds)
        after = status_of(daemon)
    spent = {actor.name: actor.cpu_seconds for actor in before.actors}
    total = 0.0
    for actor in after.actors:
        used = actor.cpu_seconds - spent.get(actor.name, 0.0)
        total += used
        report.rows.append([actor.name, used / seconds * 100, actor.rss_bytes / 1e6])
    report.rows.append(["all", total / seconds * 100, sum(a.rss_bytes for a in after.actors) / 1e6])
    return report


def ring(config: EngineConfig, num_requests: int) -> Report:
    """What the processes around the GPU cost: first token of a one-token prompt less the worker's own time.

    One request at a time on an idle engine; the worker says itself what its step took.
    """
    report = Report(
        f"ring: {num_requests} requests of one token, one after the other",
        ["what", "median ms", "p90 ms", "p99 ms"],
        plot_columns=("what", "median ms"),
    )
    with private_daemon(config) as daemon:

        async def run() -> list[tuple[float, float]]:
            found = []
            async with client_of(daemon) as client:
                await timed(client, [1], 8)
                for number in range(num_requests):
                    timing = await timed(client, [3 + number % 1000], 1)
                    found.append((timing.first_token_s, timing.first_step_s))
            return found

        pairs = asyncio.run(run())
    columns: list[tuple[str, Callable[[tuple[float, float]], float]]] = [
        ("client to first token", lambda pair: pair[0]),
        ("worker's step", lambda pair: pair[1]),
        ("everything else", lambda pair: pair[0] - pair[1]),
    ]
    for name, pick in columns:
        values = [pick(pair) * 1e3 for pair in pairs]
        report.rows.append([name, *(quantile(values, q) for q in (0.5, 0.9, 0.99))])
    return report


async def _one_answer(daemon: DaemonProcess, num_tokens: int) -> None:
    async with client_of(daemon) as client:
        await timed(client, [1], num_tokens)


def _describe(report: Report, status: DaemonStatus, limits: DeviceLimits) -> None:
    geometry = status.geometry
    if geometry is None:
        return
    report.notes.append(
        f"{geometry.model_name} on {limits.device}, {geometry.dtype}: reads"
        f" {limits.read_bytes_per_s / 1e9:.1f} GB/s, multiplies {limits.flop_per_s / 1e12:.2f} TFLOP/s"
        f" ({limits.dtype}); a step reads {geometry.step_read_bytes / 1e6:.0f} MB of weights"
    )
    report.details["limits"] = {
        "device": limits.device,
        "dtype": limits.dtype,
        "read_bytes_per_s": limits.read_bytes_per_s,
        "flop_per_s": limits.flop_per_s,
    }
    report.details["model"] = geometry.model_name
    report.details["start_phases"] = status.start_phases
