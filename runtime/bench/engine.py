"""The engine that a benchmark measures: a private daemon, started for it and ended with it."""

import asyncio
import contextlib
import gc
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from pillion.messages.control import DaemonStatus, EngineGeometry
from pillion.messages.sampling import SamplingParams
from pillion.runtime.async_client import AsyncClient
from pillion.runtime.config import EngineConfig
from pillion.runtime.control_socket import ask_status
from pillion.runtime.daemon import DaemonProcess, locate_model, start_daemon
from pillion.runtime.errors import PillionError
from pillion.runtime.outputs import RequestMetrics

STATUS_TIMEOUT_S = 5.0
GRAPHS_TIMEOUT_S = 60.0
KERNEL_CACHE = "TRITON_CACHE_DIR"


@dataclass(slots=True)
class Timing:
    """One request as its client saw it; times are seconds from sending."""

    first_token_s: float
    last_token_s: float
    num_tokens: int
    first_step_s: float  # the worker's own time for the step that gave the first token
    arrivals_s: list[float] = field(default_factory=list)


@contextlib.contextmanager
def private_daemon(config: EngineConfig, *, captured: bool = True) -> Iterator[DaemonProcess]:
    """A ready daemon under a name of its own; with `captured`, when its worker has captured all steps."""
    named = msgspec.structs.replace(
        config, name=f"bench-{os.getpid()}-{time.monotonic_ns() % 10**6}"
    )
    daemon = start_daemon(locate_model(named, progress=True), private=True)
    try:
        daemon.wait_ready(config.start_timeout_s)
        if captured:
            _wait_for_graphs(daemon)
        yield daemon
    finally:
        daemon.stop()


def _wait_for_graphs(daemon: DaemonProcess) -> None:
    """Until no graph is left to capture, as the worker reports it once a second. Raises PillionError."""
    deadline = time.monotonic() + GRAPHS_TIMEOUT_S
    while time.monotonic() < deadline:
        (worker,) = (actor for actor in status_of(daemon).actors if actor.name == "gpu_worker")
        if worker.counters and not worker.gauges.get("graphs_left"):
            return
        time.sleep(0.05)
    raise PillionError(
        f"the worker has not captured all its steps after {GRAPHS_TIMEOUT_S:g} s; if its log says that there is no"
        " memory for them, lower memory_fraction or max_num_seqs"
    )


@contextlib.contextmanager
def kernel_cache(*, empty: bool) -> Iterator[None]:
    """Daemons that are started meanwhile find the kernels compiled so far; with `empty`, none."""
    if not empty:
        yield
        return
    before = os.environ.get(KERNEL_CACHE)
    with tempfile.TemporaryDirectory(prefix="pillion-cold-") as folder:
        os.environ[KERNEL_CACHE] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[KERNEL_CACHE]
            else:
                os.environ[KERNEL_CACHE] = before


def status_of(daemon: DaemonProcess) -> DaemonStatus:
    """What the launcher says of all actors."""
    return ask_status(daemon.directory, STATUS_TIMEOUT_S)


def geometry_of(daemon: DaemonProcess) -> EngineGeometry:
    """What the worker found after loading."""
    geometry = status_of(daemon).geometry
    if geometry is None:
        raise PillionError("the daemon is ready and has no geometry")
    return geometry


@contextlib.asynccontextmanager
async def client_of(daemon: DaemonProcess) -> AsyncIterator[AsyncClient]:
    """A connected client of the daemon."""
    async with AsyncClient(daemon.directory.client_socket) as client:
        # What is there now stays: the garbage collector need not look at it while steps are timed.
        gc.freeze()
        yield client


def random_prompt(rng: random.Random, vocab_size: int, num_tokens: int) -> list[int]:
    """Ids that no earlier prompt shares a prefix with, but by accident."""
    return [rng.randrange(3, vocab_size) for _ in range(num_tokens)]


async def timed(client: AsyncClient, prompt: list[int], num_output_tokens: int) -> Timing:
    """Streams one greedy answer of exactly this length. Raises PillionError if it comes out shorter."""
    arrivals: list[float] = []
    start = time.perf_counter()
    metrics = await stream_arrivals(client, prompt, num_output_tokens, arrivals)
    if len(arrivals) != num_output_tokens:
        raise PillionError(f"asked for {num_output_tokens} tokens, got {len(arrivals)}")
    first_step_s = (metrics.first_step_s if metrics is not None else None) or 0.0
    since_start = [at - start for at in arrivals]
    return Timing(since_start[0], since_start[-1], len(arrivals), first_step_s, since_start)


async def stream_arrivals(
    client: AsyncClient, prompt: list[int], num_output_tokens: int, arrivals: list[float]
) -> RequestMetrics | None:
    """Streams one greedy answer and notes when each token came. Returns what the daemon says of it.

    Writes: `arrivals`, seconds of time.perf_counter(), while the answer grows.
    """
    params = SamplingParams(temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True)
    stream = await client.generate(prompt, params, stream=True)
    async with stream:
        async for new in stream:
            now = time.perf_counter()
            arrivals += [now] * len(new.outputs[0].token_ids)
    return stream.output.metrics


async def together(
    client: AsyncClient, prompts: list[list[int]], num_output_tokens: int
) -> list[Timing]:
    """All prompts at once."""
    return list(
        await asyncio.gather(*(timed(client, prompt, num_output_tokens) for prompt in prompts))
    )


def seconds_per_step(run: Sequence[Timing]) -> float:
    """Of a batch that started together: from everyone's first token to the first one's end."""
    start = max(timing.first_token_s for timing in run)
    end = min(timing.last_token_s for timing in run)
    steps = min(sum(start < at <= end for at in timing.arrivals_s) for timing in run)
    return (end - start) / max(steps, 1)
