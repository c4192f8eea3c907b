"""Two daemons that serve the same, behind one client: each is replaced under load, and nobody notices."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from ring_daemon import RingDaemon, until

from pillion import AsyncClient, SamplingParams

pytestmark = pytest.mark.model

NAMES = ("east", "west")
NUM_REQUESTS = 500
NUM_AT_ONCE = 50
DEADLINE_S = 120.0


@pytest.fixture
def replicas(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[RingDaemon]]:
    root = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("PILLION_RUNTIME_DIR", str(root))
    daemons = [RingDaemon(smollm2_path, root, name=name, max_num_seqs=8) for name in NAMES]
    yield daemons
    for daemon in daemons:
        daemon.close()


async def test_500_requests_while_a_daemon_of_two_is_ended(replicas: list[RingDaemon]) -> None:
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=60, ignore_eos=True)
    limit = asyncio.Semaphore(NUM_AT_ONCE)
    answered: list[int] = []

    async def ask(client: AsyncClient, number: int) -> tuple[int, ...]:
        async with limit:
            prompt = [3 + number % 90, 4 + number // 90]
            tokens = (await client.generate(prompt, params)).outputs[0].token_ids
            answered.append(number)
            return tuple(tokens)

    async with AsyncClient(NAMES) as client, asyncio.timeout(DEADLINE_S):
        answers = [asyncio.create_task(ask(client, number)) for number in range(NUM_REQUESTS)]
        await until("some are answered", lambda: len(answered) >= 100)
        assert len(answered) < NUM_REQUESTS, "it is under load"
        replicas[0].terminate()
        disturbed = await asyncio.gather(*answers)
        await until("it has ended", lambda: replicas[0].process.poll() is not None)
        assert replicas[0].process.returncode == 0
        undisturbed = await asyncio.gather(*(ask(client, n) for n in range(NUM_REQUESTS)))
    assert disturbed == undisturbed
    assert {len(tokens) for tokens in disturbed} == {60}
