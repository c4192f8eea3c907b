"""POST /v1/chat/completions."""

import time
from typing import Any

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
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    PromptLogprobs,
    ToolCall,
)
from pillion.actors.gateway.openai_requests import ChatCompletionRequest
from pillion.actors.gateway.sample import Sample
from pillion.actors.gateway.sampling_fields import chat_sampling
from pillion.actors.gateway.structure_fields import STRUCTURE, structure_field
from pillion.actors.gateway.usage import UsageCount, usage_mode
from pillion.messages.codec import unpack_ids
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import GenerateChunk, GenerateRequest, ToolCallDelta
from pillion.runtime.errors import DaemonUnavailable, RequestError

_RENAMED = {"prompt": "messages", "prompt_token_ids": "messages"}


async def chat_completions(gateway: Gateway, exchange: Exchange, data: bytes) -> None:
    """Answers a chat, whole or as a stream."""
    async with gateway.counted(exchange) as generation:
        body = read_body(data, ChatCompletionRequest)
        request = body.request
        gateway.check_model(request.model)
        params = chat_sampling(request)
        generate = chat_generation(gateway, request, params)
        renamed = {**_RENAMED, STRUCTURE: structure_field(request) or STRUCTURE}
        try:
            async with Answers(gateway.link, [generate], generation) as answers:
                if request.stream:
                    shape = _ChatStream(gateway.model_name, request)
                    await stream_answers(exchange, answers, shape, body.headers, renamed)
                else:
                    reply = await _whole(gateway.model_name, request, params.n, answers)
                    await exchange.reply(200, msgspec.json.encode(reply), body.headers)
        except (RequestError, DaemonUnavailable) as error:
            raise http_error_of(error, renamed) from error


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
        chat_template_kwargs=template_arguments(
            request.chat_template_kwargs, request.reasoning_effort
        ),
        tools=request.tools or None,
        parse_output=True,
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        return_prompt_token_ids=bool(
            request.return_token_ids or (options and options.continuous_usage_stats)
        ),
        stream=bool(request.stream),
    )


def template_arguments(given: dict[str, Any] | None, effort: str | None) -> dict[str, Any] | None:
    """Variables of the chat template; how much a model shall think is one, under the names in use."""
    if effort is None:
        return given
    thinking = {"enable_thinking": False, "thinking": False} if effort == "none" else {}
    return {"reasoning_effort": effort, **thinking, **(given or {})}


def whole_calls(sample: Sample) -> list[ToolCall]:
    """The calls of a whole answer."""
    return [
        ToolCall(
            id=call.id,
            type="function",
            function=CalledFunction(name=call.name, arguments=call.arguments),
        )
        for call in sample.tool_calls
    ]


async def _whole(
    model: str, request: ChatCompletionRequest, num_samples: int, answers: Answers
) -> ChatCompletion:
    samples = [Sample() for _ in range(num_samples)]
    usage = UsageCount()
    first = _FirstChunk(request)
    while chunks := await answers.next():
        for _, chunk in chunks:
            usage.add(chunk)
            first.add(chunk)
            samples[chunk.index].add(chunk)
    return ChatCompletion(
        id=new_id("chatcmpl-"),
        created=int(time.time()),
        model=model,
        choices=[
            ChatChoice(
                index=index,
                message=_message(sample),
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


def _message(sample: Sample) -> ChatMessage:
    reasoning = sample.reasoning or UNSET
    return ChatMessage(
        content=None if sample.tool_calls and not sample.text else sample.text,
        reasoning=reasoning,
        reasoning_content=reasoning,
        tool_calls=whole_calls(sample) or UNSET,
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
        self._id = new_id("chatcmpl-")
        self._created = int(time.time())
        self._usage = UsageCount()
        self._usage_mode = usage_mode(request.stream_options)
        self._started: set[int] = set()

    def events(self, chunks: list[PromptChunk]) -> bytes:
        """Each sample's first event names the role; the others bring text."""
        return b"".join([event(self._chunk(chunk)) for _, chunk in chunks if self._tells(chunk)])

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

    def _tells(self, chunk: GenerateChunk) -> bool:
        """Whether an event of this chunk would bring anything; its tokens are counted."""
        self._usage.add(chunk)
        return (
            chunk.index not in self._started
            or bool(chunk.text or chunk.reasoning or chunk.tool_calls)
            or chunk.finish_reason is not None
            or chunk.logprobs is not None
            or self._usage_mode == "every"
            or bool(self._request.return_token_ids)
        )

    def _chunk(self, chunk: GenerateChunk) -> ChatChunk:
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
                reasoning=chunk.reasoning or UNSET,
                reasoning_content=chunk.reasoning or UNSET,
                tool_calls=[_call_delta(call) for call in chunk.tool_calls] or UNSET,
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


def _call_delta(call: ToolCallDelta) -> ToolCall:
    return ToolCall(
        index=call.index,
        id=call.id or UNSET,
        type="function" if call.id else UNSET,
        function=CalledFunction(name=call.name or UNSET, arguments=call.arguments),
    )
