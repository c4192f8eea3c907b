"""POST /v1/chat/completions."""

import time

import msgspec
from msgspec import UNSET, UnsetType

from pillion.actors.gateway.answers import Answers, PromptChunk
from pillion.actors.gateway.bodies import read_body
from pillion.actors.gateway.events import DONE, AnswerShape, event, stream_answers
from pillion.actors.gateway.exchange import Exchange
from pillion.actors.gateway.gateway import Gateway, new_id
from pillion.actors.gateway.http_errors import http_error_of
from pillion.actors.gateway.logprob_shapes import chat_logprobs, prompt_logprobs
from pillion.actors.gateway.openai_replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatTokenLogprob,
    PromptLogprobs,
)
from pillion.actors.gateway.openai_requests import ChatCompletionRequest
from pillion.actors.gateway.sampling_fields import chat_sampling
from pillion.actors.gateway.usage import UsageCount, usage_mode
from pillion.messages.codec import unpack_ids
from pillion.messages.ids import FinishReason
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import GenerateChunk, GenerateRequest
from pillion.runtime.errors import DaemonUnavailable, RequestError

_RENAMED = {"prompt": "messages", "prompt_token_ids": "messages"}


async def chat_completions(gateway: Gateway, exchange: Exchange, data: bytes) -> None:
    """Answers a chat, whole or as a stream."""
    async with gateway.counted() as timing:
        body = read_body(data, ChatCompletionRequest)
        request = body.request
        gateway.check_model(request.model)
        params = chat_sampling(request)
        generate = chat_generation(gateway, request, params)
        try:
            async with Answers(gateway.link, [generate], timing) as answers:
                if request.stream:
                    shape = _ChatStream(gateway.model_name, request)
                    await stream_answers(exchange, answers, shape, body.headers)
                else:
                    reply = await _whole(gateway.model_name, request, params.n, answers)
                    await exchange.reply(200, msgspec.json.encode(reply), body.headers)
        except (RequestError, DaemonUnavailable) as error:
            raise http_error_of(error, _RENAMED) from error


def chat_generation(
    gateway: Gateway, request: ChatCompletionRequest, params: SamplingParams
) -> GenerateRequest:
    """The daemon's request for this chat."""
    options = request.stream_options
    return GenerateRequest(
        client_request_id=gateway.link.new_request_id(),
        messages=request.messages,
        sampling_params=params,
        priority=request.priority or 0,
        cache_salt=request.cache_salt or "",
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final_message=bool(request.continue_final_message),
        chat_template=request.chat_template,
        chat_template_kwargs=request.chat_template_kwargs,
        return_prompt_token_ids=bool(
            request.return_token_ids or (options and options.continuous_usage_stats)
        ),
        stream=bool(request.stream),
    )


class _Sample:
    """One answer as far as it has come."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[ChatTokenLogprob] = []
        self.finish_reason: FinishReason = "stop"
        self.stop_reason: int | str | None = None

    def add(self, chunk: GenerateChunk) -> None:
        self.pieces.append(chunk.text)
        self.token_ids += unpack_ids(chunk.token_ids)
        if chunk.logprobs is not None:
            self.logprobs += chat_logprobs(chunk.logprobs).content
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
            self.stop_reason = chunk.stop_reason


async def _whole(
    model: str, request: ChatCompletionRequest, num_samples: int, answers: Answers
) -> ChatCompletion:
    samples = [_Sample() for _ in range(num_samples)]
    usage = UsageCount()
    first = _FirstChunk(request)
    while chunks := await answers.next():
        for _, chunk in chunks:
            usage.add(chunk)
            first.add(chunk)
            samples[chunk.index].add(chunk)
    return ChatCompletion(
        id=new_id("chatcmpl"),
        created=int(time.time()),
        model=model,
        choices=[
            ChatChoice(
                index=index,
                message=ChatMessage("".join(sample.pieces)),
                logprobs=ChatLogprobs(sample.logprobs) if request.logprobs else None,
                finish_reason=sample.finish_reason,
                stop_reason=sample.stop_reason,
                token_ids=sample.token_ids if request.return_token_ids else UNSET,
            )
            for index, sample in enumerate(samples)
        ],
        usage=usage.whole(),
        prompt_logprobs=first.logprobs,
        prompt_token_ids=first.token_ids,
    )


class _FirstChunk:
    """What only a request's first chunk brings."""

    def __init__(self, request: ChatCompletionRequest) -> None:
        self._wants_ids = bool(request.return_token_ids)
        self.logprobs: PromptLogprobs | UnsetType = UNSET
        self.token_ids: list[int] | UnsetType = UNSET

    def add(self, chunk: GenerateChunk) -> None:
        if chunk.prompt_logprobs is not None:
            self.logprobs = prompt_logprobs(chunk.prompt_logprobs)
        if chunk.prompt_token_ids is not None and self._wants_ids:
            self.token_ids = unpack_ids(chunk.prompt_token_ids)


class _ChatStream(AnswerShape):
    """The events of a streamed chat."""

    def __init__(self, model: str, request: ChatCompletionRequest) -> None:
        self._model = model
        self._request = request
        self._id = new_id("chatcmpl")
        self._created = int(time.time())
        self._usage = UsageCount()
        self._usage_mode = usage_mode(request.stream_options)
        self._started: set[int] = set()

    def events(self, chunks: list[PromptChunk]) -> bytes:
        """Each sample's first event names the role; the others bring text."""
        return b"".join([event(self._chunk(chunk)) for _, chunk in chunks])

    def end(self) -> bytes:
        """The usage, if it was asked for."""
        if self._usage_mode == "none":
            return DONE
        last = ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[],
            usage=self._usage.whole(),
        )
        return event(last) + DONE

    def _chunk(self, chunk: GenerateChunk) -> ChatChunk:
        self._usage.add(chunk)
        first = _FirstChunk(self._request)
        first.add(chunk)
        finished = chunk.finish_reason is not None
        is_start = chunk.index not in self._started
        self._started.add(chunk.index)
        choice = ChatChunkChoice(
            index=chunk.index,
            delta=ChatDelta(
                role="assistant" if is_start else UNSET,
                content=chunk.text if chunk.text or is_start else UNSET,
            ),
            logprobs=None if chunk.logprobs is None else chat_logprobs(chunk.logprobs),
            finish_reason=chunk.finish_reason,
            stop_reason=chunk.stop_reason if finished else UNSET,
            token_ids=unpack_ids(chunk.token_ids) if self._request.return_token_ids else UNSET,
        )
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[choice],
            usage=self._usage.of_event(self._usage_mode),
            prompt_logprobs=first.logprobs,
            prompt_token_ids=first.token_ids,
        )
