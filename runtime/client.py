"""The client library: talks to a running daemon from threads (`Client`) or asyncio (`AsyncClient`)."""

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

import msgspec

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
from pillion.runtime.async_client import AsyncClient, ask_status
from pillion.runtime.client_connection import Connection, Reply, socket_path
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
from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.outputs import RequestOutput
from pillion.runtime.paths import RunDir
from pillion.runtime.prompts import ManyPrompts, Messages, OnePrompt
from pillion.runtime.request_batch import DEFAULT_WINDOW, RequestBatch
from pillion.runtime.request_stream import RequestStream, receive

__all__ = ["AsyncClient", "Client"]


class Client:
    """A connection to a daemon, safe to share between threads; any number of requests at a time.

    After a lost connection the next call connects again, and so does a forked child.
    """

    def __init__(
        self,
        name: str | os.PathLike[str] = "default",
        *,
        client_name: str = "",
        fairness_key: str = "",
        connect_timeout: float = 5.0,
    ) -> None:
        """Connects to the daemon of this name, or to a socket path (anything with a slash).

        Clients with the same `fairness_key` share one fair share. Raises DaemonUnavailable within
        `connect_timeout` seconds.
        """
        check_timeout("connect_timeout", connect_timeout)
        self._path = socket_path(name)
        self._client_name = client_name or f"python-{os.getpid()}"
        self._fairness_key = fairness_key
        self._connect_timeout = connect_timeout
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._connection: Connection | None = None
        self._closed = False
        self._connected()

    @property
    def welcome(self) -> Welcome:
        """What the daemon said of itself when this client connected: model, limits, version."""
        return self._connected().welcome

    @overload
    def generate(
        self,
        prompts: OnePrompt | None = None,
        sampling_params: SamplingParams | None = None,
        *,
        stream: Literal[True],
        prompt_token_ids: Sequence[int] | None = None,
        messages: Messages | None = None,
        **options: Unpack[RequestOptions],
    ) -> RequestStream: ...
    @overload
    def generate(
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
    def generate(
        self,
        prompts: ManyPrompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[RequestOptions],
    ) -> list[RequestOutput]: ...

    def generate(
        self,
        prompts: Any = None,
        sampling_params: Any = None,
        *,
        stream: bool = False,
        prompt_token_ids: Any = None,
        messages: Any = None,
        **options: Unpack[RequestOptions],
    ) -> RequestOutput | RequestStream | list[RequestOutput]:
        """Completes a prompt (text, token ids, messages) or a list of prompts.

        One prompt gives a RequestOutput, or with `stream` a RequestStream; a list gives a list in the same
        order. In a list, a request that the daemon refuses cancels the others and raises with its index;
        a refusal for lack of room is tried again. Raises InvalidRequest, RequestError, DaemonUnavailable.
        """
        requests, many = generate_requests(
            self.next_request_id,
            prompts,
            sampling_params,
            prompt_token_ids,
            messages,
            options,
            stream=stream,
        )
        if many:
            return self.run_batch(requests)
        answer = RequestStream(self, self._connected(), requests[0])
        if stream:
            return answer
        with answer:
            for _ in answer:
                pass
        return answer.output

    @overload
    def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        stream: Literal[True],
        **options: Unpack[RequestOptions],
    ) -> RequestStream: ...
    @overload
    def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[RequestOptions],
    ) -> RequestOutput: ...
    @overload
    def chat(
        self,
        messages: Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[RequestOptions],
    ) -> list[RequestOutput]: ...

    def chat(
        self,
        messages: Any,
        sampling_params: Any = None,
        *,
        stream: bool = False,
        **options: Unpack[RequestOptions],
    ) -> RequestOutput | RequestStream | list[RequestOutput]:
        """Answers a conversation, or a list of conversations, through the model's chat template."""
        return self.generate(  # type: ignore[call-overload,no-any-return]
            None, sampling_params, messages=messages, stream=stream, **options
        )

    def run_batch(
        self,
        requests: Sequence[GenerateRequest],
        *,
        window: int = DEFAULT_WINDOW,
        on_finished: Callable[[RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """Runs many requests with at most `window` in flight; the answers have their order.

        `on_finished` is called with each answer as it becomes complete.
        """
        connection = self._connected()
        batch = RequestBatch(requests, now_ns(), window)
        replies: SimpleQueue[Reply] = SimpleQueue()
        try:
            while not batch.finished:
                while (request := batch.next_request(now_ns())) is not None:
                    connection.submit(request.client_request_id, request, replies.put)
                reply = receive(replies, connection, batch.wake_at_ns())
                output = batch.on_reply(reply, now_ns())
                if output is not None:
                    connection.forget(output.request_id)
                    if on_finished is not None:
                        on_finished(output)
        finally:
            for request_id in batch.in_flight:
                connection.cancel(request_id)
        return batch.outputs

    def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        timeout: float | None = 60.0,
        **options: Unpack[TokenizeOptions],
    ) -> list[int]:
        """The token ids of a text or a conversation, as generation would see them."""
        request = tokenize_request(self.next_request_id(), prompt, messages, options)
        reply = self._ask(request.client_request_id, request, TokenizeReply, timeout)
        return unpack_ids(reply.token_ids)

    def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        timeout: float | None = 60.0,
    ) -> str:
        """The text of token ids."""
        request = detokenize_request(self.next_request_id(), token_ids, skip_special_tokens)
        return self._ask(request.client_request_id, request, DetokenizeReply, timeout).text

    def embed(
        self,
        inputs: Sequence[str | list[int]],
        *,
        pooling: str = "",
        timeout: float | None = None,
    ) -> EmbeddingChunk:
        """The vectors of the inputs. Raises RequestError("unsupported") for models that only generate."""
        request = EmbedRequest(
            client_request_id=self.next_request_id(), inputs=list(inputs), pooling=pooling
        )
        return self._ask(request.client_request_id, request, EmbeddingChunk, timeout)

    def status(self) -> DaemonStatus:
        """The daemon's state and its actors, as `pillion status` shows them."""
        return ask_status(RunDir(self._path.parent), self._connect_timeout)

    def close(self) -> None:
        """Ends the connection; the daemon cancels what is open. The client cannot be used again."""
        self._closed = True
        connection = self._connection
        if connection is not None and self._pid == os.getpid():
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            self.close()

    def next_request_id(self) -> str:
        """An id that no other request of this client has."""
        return str(next(self._ids))

    def _connected(self) -> Connection:
        if self._pid != os.getpid():
            # A forked child: the parent's connection is not ours, and a thread of the parent may have
            # held the lock.
            self._lock = threading.Lock()
            self._connection = None
            self._pid = os.getpid()
        with self._lock:
            if self._closed:
                raise DaemonUnavailable("this client was closed")
            if self._connection is None or self._connection.lost is not None:
                self._connection = Connection(
                    self._path, self._client_name, self._fairness_key, self._connect_timeout
                )
            return self._connection

    def _ask(
        self, request_id: str, message: msgspec.Struct, kind: type[R], timeout: float | None
    ) -> R:
        check_timeout("timeout", timeout)
        connection = self._connected()
        replies: SimpleQueue[Reply] = SimpleQueue()
        until = None if timeout is None else now_ns() + int(timeout * NS_PER_S)
        try:
            connection.submit(request_id, message, replies.put)
            reply = receive(replies, connection, until)
        finally:
            connection.forget(request_id)
        return expect_reply(reply, kind, timeout)
