"""The first token of a prompt on an idle engine, and a running stream beside a long prompt."""

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Sequence
from typing import Final

from pillion.runtime.async_client import AsyncClient
from pillion.runtime.bench.bare_steps import BareStepTimes, measure_bare_steps
from pillion.runtime.bench.engine import (
    client_of,
    geometry_of,
    private_daemon,
    random_prompt,
    stream_arrivals,
    timed,
)
from pillion.runtime.bench.report import Report, quantile
from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import DaemonProcess
from pillion.runtime.errors import ConfigError, PillionError

# The streams run this many tokens before the long prompt comes; behind the first ones, that is what is normal.
NORMAL_TOKENS: Final = 128
SETTLE_TOKENS: Final = 32
_STREAM_INPUT: Final = 16
MOST_BARE: Final = 50  # prefills alone
_NORMAL_DEADLINE_S: Final = 120.0


def first_token(config: EngineConfig, num_input: int, num_requests: int) -> Report:
    """One prompt at a time on an idle engine: its first token, over the same prefill with nothing around it."""
    bare = measure_bare_steps(
        config, prefills=[num_input], prefill_repeats=min(num_requests, MOST_BARE)
    )
    with private_daemon(config) as daemon:
        return first_token_of(daemon, bare, num_input, num_requests)


def first_token_of(
    daemon: DaemonProcess, bare: BareStepTimes, num_input: int, num_requests: int
) -> Report:
    """The same of a daemon that runs, beside prefills that were measured before it was started."""
    report = Report(
        f"first token: {num_requests} prompts of {num_input} tokens, one after the other",
        ["prompt tokens", "median ms", "p99 ms", "bare prefill ms", "over bare"],
        plot_columns=("prompt tokens", "median ms", "bare prefill ms"),
    )
    rng = random.Random(0)
    vocab_size = geometry_of(daemon).vocab_size

    async def run() -> list[float]:
        async with client_of(daemon) as client:
            await timed(client, random_prompt(rng, vocab_size, num_input), 8)
            return [
                (await timed(client, random_prompt(rng, vocab_size, num_input), 1)).first_token_s
                * 1e3
                for _ in range(num_requests)
            ]

    found = sorted(asyncio.run(run()))
    bare_ms = statistics.median(bare.prefill_ms[num_input])
    median_ms = quantile(found, 0.5)
    report.rows.append([num_input, median_ms, quantile(found, 0.99), bare_ms, median_ms / bare_ms])
    report.details["first_token_ms"] = found
    report.details["bare_prefill_ms"] = bare.prefill_ms[num_input]
    return report


def interference(
    config: EngineConfig, batches: Sequence[int], num_input: int, repeats: int
) -> Report:
    """Streams that decode, and a long prompt that arrives: gaps between a stream's tokens before and meanwhile.

    Raises ConfigError if the prompt is longer than the model takes.
    """
    with private_daemon(config) as daemon:
        return interference_of(daemon, batches, num_input, repeats)


def interference_of(
    daemon: DaemonProcess, batches: Sequence[int], num_input: int, repeats: int
) -> Report:
    """The same of a daemon that runs."""
    report = Report(
        f"interference: a prompt of {num_input} tokens beside running streams; {repeats} times",
        [
            "streams",
            "gap ms",
            "gap p99 ms",
            "beside: p50 ms",
            "beside: p99 ms",
            "beside: most ms",
            "p99 over gap",
            "long prompt s",
        ],
        plot_columns=("streams", "gap ms", "beside: p99 ms"),
    )
    rng = random.Random(0)
    geometry = geometry_of(daemon)
    if num_input >= geometry.max_model_len:
        raise ConfigError(
            f"a prompt of {num_input} tokens (--input-len) does not fit max_model_len"
            f" {geometry.max_model_len}"
        )
    num_output = geometry.max_model_len - _STREAM_INPUT

    async def run() -> None:
        async with client_of(daemon) as client:
            for batch in batches:
                normal: list[float] = []
                meanwhile: list[float] = []
                prompts_s: list[float] = []
                for _ in range(repeats):
                    prompt = random_prompt(rng, geometry.vocab_size, num_input)
                    streams = [
                        random_prompt(rng, geometry.vocab_size, _STREAM_INPUT) for _ in range(batch)
                    ]
                    found = await beside(client, streams, num_output, prompt)
                    normal += found[0]
                    meanwhile += found[1]
                    prompts_s.append(found[2])
                gap_ms, p99_ms = quantile(normal, 0.5) * 1e3, quantile(meanwhile, 0.99) * 1e3
                report.rows.append(
                    [batch, gap_ms, quantile(normal, 0.99) * 1e3, quantile(meanwhile, 0.5) * 1e3,
                     p99_ms, max(meanwhile) * 1e3, p99_ms / gap_ms, statistics.median(prompts_s)]
                )  # fmt: skip

    asyncio.run(run())
    report.details["max_num_batched_tokens"] = geometry.max_num_batched_tokens
    return report


async def beside(
    client: AsyncClient, streams: list[list[int]], num_output: int, prompt: list[int]
) -> tuple[list[float], list[float], float]:
    """Gaps of the streams before the long prompt, gaps until its first token, and how long that took."""
    arrivals: list[list[float]] = [[] for _ in streams]
    tasks = [
        asyncio.create_task(stream_arrivals(client, ids, num_output, into))
        for ids, into in zip(streams, arrivals, strict=True)
    ]
    try:
        async with asyncio.timeout(_NORMAL_DEADLINE_S):
            while any(len(times) < NORMAL_TOKENS for times in arrivals):
                ended, _ = await asyncio.wait(
                    tasks, timeout=0.001, return_when=asyncio.FIRST_COMPLETED
                )
                if ended:
                    ended.pop().result()
                    raise PillionError(
                        f"a stream ended after {num_output} tokens, before the long prompt came"
                    )
        sent = time.perf_counter()
        await timed(client, prompt, 1)
        answered = time.perf_counter()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    normal, beside = [], []
    for times in arrivals:
        for before, after in itertools.pairwise(times[SETTLE_TOKENS:]):
            if after <= sent:
                normal.append(after - before)
            elif before < answered:
                beside.append(after - before)
    return normal, beside, answered - sent
