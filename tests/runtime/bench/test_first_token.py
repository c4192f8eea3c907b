"""First tokens and the gaps of running streams, with a client whose time the test decides."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from pillion.runtime.async_client import AsyncClient
from pillion.runtime.bench import first_token
from pillion.runtime.bench.first_token import NORMAL_TOKENS, SETTLE_TOKENS, beside
from pillion.runtime.errors import PillionError

LONG = [7] * 50
BESIDE_TOKENS = 5


class FakeStream:
    """Answers a token whenever the loop comes round; the long prompt's waits for some tokens of the others."""

    def __init__(self, client: "FakeClient", prompt: list[int], num_tokens: int) -> None:
        self._client = client
        self._is_long = prompt == LONG
        self._num_tokens = num_tokens
        self.output = SimpleNamespace(metrics=None)

    async def __aenter__(self) -> "FakeStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[Any]:
        client = self._client
        if self._is_long:
            client.now += 100.0
            goal = client.num_tokens + BESIDE_TOKENS
            await client.has_made(goal)
        for _ in range(self._num_tokens):
            if not self._is_long:
                await client.make_token()
            yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1])])
            await asyncio.sleep(0)


class FakeClient:
    def __init__(self) -> None:
        self.now = 0.0
        self.num_tokens = 0
        self._made = asyncio.Condition()

    async def make_token(self) -> None:
        async with self._made:
            self.now += 0.5 if self.now > 100.0 else 0.25
            self.num_tokens += 1
            self._made.notify_all()

    async def has_made(self, num_tokens: int) -> None:
        async with self._made:
            await self._made.wait_for(lambda: self.num_tokens >= num_tokens)

    async def generate(self, prompt: list[int], params: Any, *, stream: bool) -> FakeStream:
        assert stream
        return FakeStream(self, prompt, params.max_tokens)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    fake = FakeClient()
    clock = SimpleNamespace(perf_counter=lambda: fake.now)
    monkeypatch.setattr(first_token, "time", clock)
    monkeypatch.setattr("pillion.runtime.bench.engine.time", clock)
    return fake


def test_gaps_before_the_long_prompt_are_normal_and_those_until_its_token_are_not(
    client: AsyncClient,
) -> None:
    normal, found, seconds = asyncio.run(beside(client, [[1, 2]], 10_000, LONG))
    assert len(normal) >= NORMAL_TOKENS - SETTLE_TOKENS - 1
    assert set(normal) == {0.25}
    # The first gap beside the prompt spans its arrival; then the stream goes on until the prompt is answered.
    assert max(found) > 100.0
    assert set(found) - {max(found)} == {0.5}
    assert BESIDE_TOKENS <= len(found) <= BESIDE_TOKENS + 2
    assert seconds == pytest.approx(100.0 + 0.5 * BESIDE_TOKENS, abs=1.1)


def test_a_stream_that_ends_too_early_is_an_error(client: AsyncClient) -> None:
    with pytest.raises(PillionError, match="ended after 20 tokens"):
        asyncio.run(beside(client, [[1, 2]], 20, LONG))
