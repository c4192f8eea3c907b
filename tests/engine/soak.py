"""Many short requests of every kind, and what each process holds of memory meanwhile.

As a program: python soak.py MODEL_FILE NUM_REQUESTS prints the memory of each process as it goes.
"""

import asyncio
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from ring_daemon import RingDaemon, until

from pillion import AsyncClient, SamplingParams
from pillion.runtime.errors import InvalidRequest

NUM_AT_ONCE: Final = 32
SETTINGS: Final = {"max_num_seqs": 16, "num_kv_blocks": 2_000, "max_model_len": 2_048}


async def one_request(client: AsyncClient, chance: random.Random) -> str:
    """A request of a kind that is drawn; returns its kind."""
    prompt = [chance.randrange(3, 900) for _ in range(chance.choice((1, 5, 40)))]
    kind = chance.choice(("short",) * 12 + ("stream", "samples", "abort", "abort", "wrong", "late"))
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    match kind:
        case "short":
            await client.generate(prompt, params)
        case "stream":
            stream = await client.generate(prompt, params, stream=True)
            async for _ in stream:
                pass
        case "samples":
            params = SamplingParams(n=3, max_tokens=3, stop=["the"], logprobs=None, seed=1)
            await client.generate(prompt, params)
        case "abort":
            params.max_tokens = 1_000
            stream = await client.generate(prompt, params, stream=True)
            await anext(stream)
            stream.close()
        case "wrong":
            with pytest.raises(InvalidRequest):
                await client.generate([10**6], params)
        case _:
            params.max_tokens = 1_000
            output = await client.generate(prompt, params, timeout=0.002)
            assert output.outputs[0].finish_reason in ("timeout", "length")
    return kind


def memory(daemon: RingDaemon) -> dict[str, int]:
    """Resident bytes of each process."""
    return {name: actor.rss_bytes for name, actor in daemon.actors().items()}


async def soak(daemon: RingDaemon, num_requests: int, num_samples: int) -> list[dict[str, int]]:
    """Runs so many requests; the memory after each of so many equal parts of them, when nothing is open."""
    chance = random.Random(0)
    kinds: Counter[str] = Counter()
    samples = []
    async with AsyncClient(daemon.directory.client_socket) as client:

        async def some(number: int) -> None:
            for _ in range(number):
                kinds[await one_request(client, chance)] += 1

        for _ in range(num_samples):
            share = num_requests // num_samples // NUM_AT_ONCE
            await asyncio.gather(*(some(share) for _ in range(NUM_AT_ONCE)))
            await until("nothing is left", daemon.is_at_rest)
            samples.append(memory(daemon))
            print(sum(kinds.values()), {n: f"{b / 2**20:.1f}" for n, b in samples[-1].items()})
    print(dict(kinds))
    return samples


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        ring = RingDaemon(Path(sys.argv[1]), Path(root), step_us=0, **SETTINGS)
        try:
            asyncio.run(soak(ring, int(sys.argv[2]), num_samples=10))
        finally:
            ring.close()
