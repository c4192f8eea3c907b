"""The engine that a benchmark measures: a private daemon, started for it and ended with it."""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import msgspec

from pillion.messages.control import DaemonStatus, EngineGeometry
from pillion.messages.sampling import SamplingParams
from pillion.runtime.async_client import AsyncClient, ask_status
from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import DaemonProcess, locate_model, start_daemon
from pillion.runtime.errors import PillionError

STATUS_TIMEOUT_S = 5.0


@dataclass(slots=True)
class Timing:
    """One request as its client saw it; times are seconds from sending."""

    first_token_s: float
    last_token_s: float
    num_tokens: int
    first_step_s: float  # the worker's own time for the step that gave the first token
    arrivals_s: list[float] = field(default_factory=list)


@contextlib.contextmanager
def private_daemon(config: EngineConfig) -> Iterator[DaemonProcess]:
    """A ready daemon under a name of its own."""
    named = msgspec.structs.replace(
        config, name=f"bench-{os.getpid()}-{time.monotonic_ns() % 10**6}"
    )
    daemon = start_daemon(locate_model(named, progress=True), private=True)
    try:
        daemon.wait_ready(config.start_timeout_s)
        yield daemon
    finally:
        daemon.stop()


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
        yield client


def random_prompt(rng: random.Random, vocab_size: int, num_tokens: int) -> list[int]:
    """Ids that no earlier prompt shares a prefix with, but by accident."""
    return [rng.randrange(3, vocab_size) for _ in range(num_tokens)]


async def timed(client: AsyncClient, prompt: list[int], num_output_tokens: int) -> Timing:
    """Streams one greedy answer of exactly this length. Raises PillionError if it comes out shorter."""
    params = SamplingParams(temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True)
    arrivals: list[float] = []
    num_tokens = 0
    start = time.perf_counter()
    stream = await client.generate(prompt, params, stream=True)
    async with stream:
        async for new in stream:
            now = time.perf_counter() - start
            got = sum(len(sample.token_ids) for sample in new.outputs)
            num_tokens += got
            arrivals += [now] * got
    if num_tokens != num_output_tokens:
        raise PillionError(f"asked for {num_output_tokens} tokens, got {num_tokens}")
    metrics = stream.output.metrics
    first_step_s = (metrics.first_step_s if metrics is not None else None) or 0.0
    return Timing(arrivals[0], arrivals[-1], num_tokens, first_step_s, arrivals)


async def together(
    client: AsyncClient, prompts: list[list[int]], num_output_tokens: int
) -> list[Timing]:
    """All prompts at once."""
    return list(
        await asyncio.gather(*(timed(client, prompt, num_output_tokens) for prompt in prompts))
    )
