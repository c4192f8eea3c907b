"""The model's answers to the prompts of one HTTP request, chunk by chunk."""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self

from pillion.actors.gateway.daemon_link import DaemonLink
from pillion.actors.gateway.request_timing import RequestTiming
from pillion.messages.text import GenerateChunk, GenerateRequest, RequestFailed
from pillion.runtime.async_connection import AsyncConnection
from pillion.runtime.client_connection import ConnectionLost, Reply
from pillion.runtime.client_requests import error_of
from pillion.runtime.errors import DaemonUnavailable, RequestError

# More prompts than this wait here, so that one body cannot fill the daemon's queue.
MAX_IN_FLIGHT: Final = 64

# Index of the prompt, and what is new of its answer.
PromptChunk = tuple[int, GenerateChunk]


class Answers:
    """Sends the requests and collects their chunks; leaving the `with` block cancels what is open."""

    def __init__(
        self, link: DaemonLink, requests: Sequence[GenerateRequest], timing: RequestTiming
    ) -> None:
        """All requests have the same number of samples."""
        self._link = link
        self._timing = timing
        self._waiting = deque(enumerate(requests))
        self._open: dict[int, tuple[str, int]] = {}  # prompt -> request id, samples that go on
        self._replies: list[tuple[int, Reply]] = []
        self._arrival: asyncio.Future[None] | None = None
        self._connection: AsyncConnection | None = None
        self._error: Exception | None = None

    async def next(self) -> list[PromptChunk]:
        """All chunks that have come, at least one; an empty list after the last.

        Raises RequestError and DaemonUnavailable, behind the chunks that came before.
        """
        await self._submit()
        while True:
            if self._error is not None:
                raise self._error
            if not self._open and not self._replies:
                return []
            if not self._replies:
                self._arrival = asyncio.get_running_loop().create_future()
                await self._arrival
            replies, self._replies = self._replies, []
            chunks = self._take(replies)
            if chunks:
                return chunks

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._waiting.clear()
        for request_id, _ in self._open.values():
            if self._connection is not None:
                self._connection.cancel(request_id)
        self._open.clear()

    async def _submit(self) -> None:
        while self._waiting and len(self._open) < MAX_IN_FLIGHT:
            # The connection of the first request: chunks of two could not be told apart.
            if self._connection is None:
                self._connection = await self._link.connection()
            prompt, request = self._waiting.popleft()
            params = request.sampling_params
            self._open[prompt] = (request.client_request_id, params.n if params else 1)
            await self._connection.submit(
                request.client_request_id, request, partial(self._on_reply, prompt)
            )

    def _on_reply(self, prompt: int, reply: Reply) -> None:
        self._replies.append((prompt, reply))
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _take(self, replies: list[tuple[int, Reply]]) -> list[PromptChunk]:
        chunks: list[PromptChunk] = []
        for prompt, reply in replies:
            if isinstance(reply, GenerateChunk):
                self._timing.note_chunk(reply)
                if reply.finish_reason == "error":
                    self._error = RequestError(reply.error or "the request failed in the daemon")
                    break
                chunks.append((prompt, reply))
                if reply.finish_reason is not None:
                    self._end_sample(prompt)
            else:
                self._error = _error_of(reply)
                if isinstance(reply, RequestFailed):
                    self._open.pop(prompt, None)
                break
        return chunks

    def _end_sample(self, prompt: int) -> None:
        request_id, num_left = self._open[prompt]
        if num_left > 1:
            self._open[prompt] = (request_id, num_left - 1)
            return
        del self._open[prompt]
        if self._connection is not None:
            self._connection.forget(request_id)


def _error_of(reply: Reply) -> Exception:
    if isinstance(reply, RequestFailed):
        return error_of(reply)
    if isinstance(reply, ConnectionLost):
        return DaemonUnavailable(reply.reason)
    return RequestError(f"the daemon answered a generation with {type(reply).__name__}")
