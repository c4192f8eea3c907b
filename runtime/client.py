"""The client library: talks to a running daemon from threads (`Client`) or asyncio (`AsyncClient`)."""

import itertools
from collections.abc import Callable, Sequence
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
from pillion.runtime.async_client import AsyncClient
from pillion.runtime.client_link import ClientLink
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
from pillion.runtime.request_batch import DEFAULT_WINDOW, RequestBatch
from pillion.runtime.request_exchange import RequestExchange
from pillion.runtime.request_stream import RequestStream
from pillion.runtime.resumable import MAX_LOSSES, Ask, Question

__all__ = ["AsyncClient", "Client"]


class Client:
    """A connection to a daemon, safe to share between threads; any number of requests at a time.

    When the connection is lost while the daemon lives, requests go on behind what has come of them. A forked
    child opens its own connection.
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
        """Connects to the daemon of this name, or to a socket path (anything with a slash).

        With a list of them, daemons that serve the same model under the same name, it uses the first that answers.
        When that is lost, or refuses because it is ending, requests go on at the next one; those that a daemon that is
        ending lets finish stay there.

        Clients with the same `fairness_key` share one fair share. Raises DaemonUnavailable within
        `connect_timeout` seconds. A connection that is lost later is opened again, and what is open goes on
        there, if the daemon takes connections again within `reattach_timeout` seconds. With `outlive_daemon`
        that also holds for a daemon that was stopped or has failed and is started again with the same model;
        without it what is open ends with the daemon. A request whose connection is lost more than `max_losses`
        times in a row, each time soon after it was sent and before anything came of it, is given up: it may be
        what ends the other side.
        """
        self._link_options = LinkOptions.of_arguments(
            name, client_name, fairness_key, connect_timeout, reattach_timeout, outlive_daemon
        )
        self._max_losses = max_losses
        self._ids = itertools.count()
        self._link = ClientLink(self._link_options)

    @property
    def welcome(self) -> Welcome:
        """What the daemon said of itself when this client connected: model, limits, version."""
        return self._link.connected().welcome

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
        answer = RequestStream(self._link.connected, requests[0], self._max_losses)
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
        batch = RequestBatch(requests, now_ns(), window)
        exchange = RequestExchange(self._link.connected, self._max_losses)
        try:
            while not batch.finished:
                while (request := batch.next_request(now_ns())) is not None:
                    exchange.send(request, batch.guard_ns)
                output = batch.on_reply(exchange.receive(batch.wake_at_ns()), now_ns())
                if output is not None:
                    exchange.forget(output.request_id)
                    if on_finished is not None:
                        on_finished(output)
        finally:
            exchange.close()
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
        return ask_status(RunDir(self._link.path.parent), self._link_options.connect_timeout_s)

    def close(self) -> None:
        """Ends the connection; the daemon cancels what is open. The client cannot be used again."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def next_request_id(self) -> str:
        """An id that no other request of this client has."""
        return str(next(self._ids))

    def _ask(self, request_id: str, message: Ask, kind: type[R], timeout: float | None) -> R:
        check_timeout("timeout", timeout)
        until = None if timeout is None else now_ns() + int(timeout * NS_PER_S)
        exchange = RequestExchange(self._link.connected, self._max_losses)
        try:
            exchange.send(Question(message), until)
            reply = exchange.receive(until)
        finally:
            exchange.forget(request_id)
        return expect_reply(reply, kind, timeout)
