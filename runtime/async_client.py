"""The client library for asyncio."""

import asyncio
import itertools
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

from pillion.messages.codec import unpack_ids
from pillion.messages.control import DaemonStatus
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import (
    DetokenizeReply,
    EmbeddingChunk,
    EmbedRequest,
    GenerateRequest,
    TokenizeReply,
    Welcome,
)
from pillion.runtime.async_client_link import AsyncClientLink
from pillion.runtime.async_request_exchange import AsyncRequestExchange
from pillion.runtime.async_request_stream import AsyncRequestStream
from pillion.runtime.client_requests import (
    R,
    RequestOptions,
    TokenizeOptions,
    check_timeout,
    detokenize_request,
    expect_reply,
    generate_requests,
    tokenize_request,
)
from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.control_socket import ask_status
from pillion.runtime.daemon_socket import DaemonName
from pillion.runtime.link_options import LinkOptions
from pillion.runtime.outputs import RequestOutput
from pillion.runtime.paths import RunDir
from pillion.runtime.prompts import ManyPrompts, Messages, OnePrompt
from pillion.runtime.request_batch import RequestBatch
from pillion.runtime.resumable import MAX_LOSSES, Ask, Question


class AsyncClient:
    """A connection to a daemon for the tasks of one event loop; any number of requests at a time.

    It connects on first use (or on `async with`). When the connection is lost while the daemon lives, requests
    go on behind what has come of them. Cancelling a task that waits for an answer cancels the request in
    the daemon.
    """

    def __init__(
        self,
        name: DaemonName | Sequence[DaemonName] = "default",
        *,
        client_name: str = "",
        fairness_key: str = "",
        connect_timeout: float = 5.0,
        reattach_timeout: float = 60.0,
        outlive_daemon: bool = False,
        max_losses: int = MAX_LOSSES,
    ) -> None:
        """As `Client`, without connecting yet."""
        self._link_options = LinkOptions.of_arguments(
            name, client_name, fairness_key, connect_timeout, reattach_timeout, outlive_daemon
        )
        self._link = AsyncClientLink(self._link_options)
        self._max_losses = max_losses
        self._ids = itertools.count()

    async def welcome(self) -> Welcome:
        """What the daemon said of itself when this client connected: model, limits, version."""
        return (await self._link.connected()).welcome

    @overload
    async def generate(
        self,
        prompts: OnePrompt | None = None,
        sampling_params: SamplingParams | None = None,
        *,
        stream: Literal[True],
        prompt_token_ids: Sequence[int] | None = None,
        messages: Messages | None = None,
        **options: Unpack[RequestOptions],
    ) -> AsyncRequestStream: ...
    @overload
    async def generate(
        self,
        prompts: OnePrompt | None = None,
        sampling_params: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        prompt_token_ids: Sequence[int] | None = None,
        messages: Messages | None = None,
        **options: Unpack[RequestOptions],
    ) -> RequestOutput: ...
    @overload
    async def generate(
        self,
        prompts: ManyPrompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[RequestOptions],
    ) -> list[RequestOutput]: ...

    async def generate(
        self,
        prompts: Any = None,
        sampling_params: Any = None,
        *,
        stream: bool = False,
        prompt_token_ids: Any = None,
        messages: Any = None,
        **options: Unpack[RequestOptions],
    ) -> RequestOutput | AsyncRequestStream | list[RequestOutput]:
        """As `Client.generate`; a stream is `async for new in await client.generate(..., stream=True)`."""
        requests, many = generate_requests(
            self._next_request_id,
            prompts,
            sampling_params,
            prompt_token_ids,
            messages,
            options,
            stream=stream,
        )
        if many:
            return await self._run_batch(requests)
        answer = await AsyncRequestStream.start(self._link.connected, requests[0], self._max_losses)
        if stream:
            return answer
        async with answer:
            async for _ in answer:
                pass
        return answer.output

    @overload
    async def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        stream: Literal[True],
        **options: Unpack[RequestOptions],
    ) -> AsyncRequestStream: ...
    @overload
    async def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[RequestOptions],
    ) -> RequestOutput: ...
    @overload
    async def chat(
        self,
        messages: Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[RequestOptions],
    ) -> list[RequestOutput]: ...

    async def chat(
        self,
        messages: Any,
        sampling_params: Any = None,
        *,
        stream: bool = False,
        **options: Unpack[RequestOptions],
    ) -> RequestOutput | AsyncRequestStream | list[RequestOutput]:
        """As `Client.chat`."""
        return await self.generate(  # type: ignore[call-overload,no-any-return]
            None, sampling_params, messages=messages, stream=stream, **options
        )

    async def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        timeout: float | None = 60.0,
        **options: Unpack[TokenizeOptions],
    ) -> list[int]:
        """As `Client.tokenize`."""
        request = tokenize_request(self._next_request_id(), prompt, messages, options)
        reply = await self._ask(request.client_request_id, request, TokenizeReply, timeout)
        return unpack_ids(reply.token_ids)

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        timeout: float | None = 60.0,
    ) -> str:
        """As `Client.detokenize`."""
        request = detokenize_request(self._next_request_id(), token_ids, skip_special_tokens)
        return (await self._ask(request.client_request_id, request, DetokenizeReply, timeout)).text

    async def embed(
        self,
        inputs: Sequence[str | list[int]],
        *,
        pooling: str = "",
        timeout: float | None = None,
    ) -> EmbeddingChunk:
        """As `Client.embed`."""
        request = EmbedRequest(
            client_request_id=self._next_request_id(), inputs=list(inputs), pooling=pooling
        )
        return await self._ask(request.client_request_id, request, EmbeddingChunk, timeout)

    async def status(self) -> DaemonStatus:
        """As `Client.status`."""
        directory = RunDir(self._link.path.parent)
        return await asyncio.to_thread(ask_status, directory, self._link_options.connect_timeout_s)

    async def close(self) -> None:
        """Ends the connection; the daemon cancels what is open. The client cannot be used again."""
        self._link.close()

    async def __aenter__(self) -> Self:
        await self._link.connected()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _next_request_id(self) -> str:
        return str(next(self._ids))

    async def _run_batch(self, requests: Sequence[GenerateRequest]) -> list[RequestOutput]:
        batch = RequestBatch(requests, now_ns())
        exchange = AsyncRequestExchange(self._link.connected, self._max_losses)
        try:
            while not batch.finished:
                while (request := batch.next_request(now_ns())) is not None:
                    await exchange.send(request, batch.guard_ns)
                reply = await exchange.receive(batch.wake_at_ns())
                output = batch.on_reply(reply, now_ns())
                if output is not None:
                    exchange.forget(output.request_id)
        finally:
            exchange.close()
        return batch.outputs

    async def _ask(self, request_id: str, message: Ask, kind: type[R], timeout: float | None) -> R:
        check_timeout("timeout", timeout)
        until = None if timeout is None else now_ns() + int(timeout * NS_PER_S)
        exchange = AsyncRequestExchange(self._link.connected, self._max_losses)
        try:
            await exchange.send(Question(message), until)
            reply = await exchange.receive(until)
        finally:
            exchange.forget(request_id)
        return expect_reply(reply, kind, timeout)
