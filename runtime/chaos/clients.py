"""The clients of a chaos run: they send requests, a window of them at a time, and note what comes back."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from pillion.runtime.async_client import AsyncClient
from pillion.runtime.chaos.answers import Answer
from pillion.runtime.chaos.load import ChaosRequest
from pillion.runtime.client import Client
from pillion.runtime.clock import now_ns
from pillion.runtime.errors import PillionError
from pillion.runtime.outputs import RequestOutput


class Clients:
    """Both kinds of client, many tasks. Every request ends: with its answer, an error, or as stuck."""

    def __init__(self, sync_client: Client, client: AsyncClient, stuck_after_s: float) -> None:
        self.num_finished = 0
        self._sync_client = sync_client
        self._client = client
        self._stuck_after_s = stuck_after_s
        self._progress = asyncio.Condition()

    async def run(self, requests: Sequence[ChaosRequest], window: int) -> list[Answer]:
        """Sends all requests, `window` at a time; the answers have their order."""
        answers = [Answer.of(request) for request in requests]
        waiting = iter(answers)

        async def work() -> None:
            for answer in waiting:
                await self._run_one(answer)
                async with self._progress:
                    self.num_finished += 1
                    self._progress.notify_all()

        await asyncio.gather(*(work() for _ in range(window)))
        return answers

    async def wait_finished(self, count: int) -> None:
        """Waits until so many requests have ended."""
        async with self._progress:
            await self._progress.wait_for(lambda: self.num_finished >= count)

    async def _run_one(self, answer: Answer) -> None:
        answer.started_ns = now_ns()
        try:
            if answer.request.stream:
                await self._stream(answer)
            else:
                async with asyncio.timeout(self._stuck_after_s):
                    answer.add(await asyncio.to_thread(self._whole, answer.request))
        except TimeoutError:
            answer.is_stuck = True
            answer.error = f"nothing came for {self._stuck_after_s:g} s"
        except PillionError as error:
            answer.error = f"{type(error).__name__}: {error}"
        answer.ended_ns = now_ns()

    async def _stream(self, answer: Answer) -> None:
        request = answer.request
        num_tokens = 0
        if request.cancel_after == 0:
            await self._leave_at_once(request)
            return
        stream = await self._client.generate(
            request.prompt,
            request.params,
            messages=request.messages,
            stream=True,
            cache_salt=request.cache_salt,
        )
        async with aclosing(stream):
            while True:
                try:
                    async with asyncio.timeout(self._stuck_after_s):
                        new = await anext(stream)
                except StopAsyncIteration:
                    return
                answer.arrivals_ns.append(now_ns())
                answer.add(new)
                num_tokens += sum(len(sample.token_ids) for sample in new.outputs)
                if request.cancel_after is not None and num_tokens >= request.cancel_after:
                    return

    async def _leave_at_once(self, request: ChaosRequest) -> None:
        """A client that is gone before anything has come."""
        stream = await self._client.generate(
            request.prompt, request.params, stream=True, cache_salt=request.cache_salt
        )
        stream.close()

    def _whole(self, request: ChaosRequest) -> RequestOutput:
        return self._sync_client.generate(
            request.prompt,
            request.params,
            messages=request.messages,
            cache_salt=request.cache_salt,
        )
