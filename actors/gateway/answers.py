"""The model's answers to the prompts of one HTTP request, chunk by chunk."""

from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from msgspec.structs import replace

from pillion.actors.gateway.daemon_link import DaemonLink
from pillion.actors.gateway.generation import Generation
from pillion.messages.inboxes import DaemonToClient
from pillion.messages.text import GenerateChunk, GenerateRequest, RequestFailed
from pillion.runtime.async_request_exchange import AsyncRequestExchange
from pillion.runtime.client_requests import error_of, error_of_sample
from pillion.runtime.errors import RequestError

# More prompts than this wait here, so that one body cannot fill the daemon's queue.
MAX_IN_FLIGHT: Final = 64

# Index of the prompt, and what is new of its answer.
PromptChunk = tuple[int, GenerateChunk]


class Answers:
    """Sends the requests and collects their chunks; leaving the `with` block cancels what is open."""

    def __init__(
        self, link: DaemonLink, requests: Sequence[GenerateRequest], generation: Generation
    ) -> None:
        """All requests have the same number of samples."""
        self._exchange = AsyncRequestExchange(link.connection)
        self._generation = generation
        self._waiting = deque(enumerate(requests))
        self._prompts: dict[str, int] = {}  # by request id
        self._num_left: dict[int, int] = {}  # prompt -> samples that go on
        self._error: Exception | None = None

    async def next(self) -> list[PromptChunk]:
        """All chunks that have come, at least one; an empty list after the last.

        Raises RequestError and DaemonUnavailable, behind the chunks that came before.
        """
        await self._submit()
        while True:
            if self._error is not None:
                raise self._error
            if not self._num_left:
                return []
            first = await self._exchange.receive(None)
            if first is None:
                continue
            chunks = self._take([first, *self._exchange.receive_more()])
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
        self._exchange.close()

    async def _submit(self) -> None:
        while self._waiting and len(self._num_left) < MAX_IN_FLIGHT:
            prompt, request = self._waiting.popleft()
            params = request.sampling_params
            self._prompts[request.client_request_id] = prompt
            self._num_left[prompt] = params.n if params else 1
            trace = self._generation.trace
            await self._exchange.send(replace(request, trace=trace) if trace else request)

    def _take(self, replies: Sequence[DaemonToClient]) -> list[PromptChunk]:
        chunks: list[PromptChunk] = []
        for reply in replies:
            if not isinstance(reply, GenerateChunk):
                self._error = _error_of(reply)
                break
            self._generation.note_chunk(reply)
            if reply.finish_reason == "error":
                self._error = error_of_sample(reply)
                break
            prompt = self._prompts[reply.client_request_id]
            chunks.append((prompt, reply))
            if reply.finish_reason is not None:
                self._end_sample(prompt, reply.client_request_id)
        return chunks

    def _end_sample(self, prompt: int, request_id: str) -> None:
        self._num_left[prompt] -= 1
        if not self._num_left[prompt]:
            del self._num_left[prompt]
            self._exchange.forget(request_id)


def _error_of(reply: DaemonToClient) -> Exception:
    if isinstance(reply, RequestFailed):
        return error_of(reply)
    return RequestError(f"the daemon answered a generation with {type(reply).__name__}")
