"""POST /v1/completions."""

import time
from typing import Any, Final

import msgspec
from msgspec import UnsetType

from pillion.actors.gateway.answers import Answers, PromptChunk
from pillion.actors.gateway.bodies import read_body
from pillion.actors.gateway.completion_choices import (
    PromptChoices,
    PromptEcho,
    join_choices,
)
from pillion.actors.gateway.events import DONE, AnswerShape, event, stream_answers
from pillion.actors.gateway.exchange import Exchange
from pillion.actors.gateway.gateway import Gateway, new_id
from pillion.actors.gateway.http_errors import http_error_of, invalid
from pillion.actors.gateway.openai_replies import Completion, CompletionChoice, Usage
from pillion.actors.gateway.openai_requests import CompletionRequest
from pillion.actors.gateway.sampling_fields import completion_sampling
from pillion.actors.gateway.structure_fields import STRUCTURE, structure_field
from pillion.actors.gateway.usage import UsageCount, usage_mode
from pillion.messages.codec import unpack_ids
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import GenerateRequest, TokenizeRequest
from pillion.runtime.errors import DaemonUnavailable, InvalidRequest, RequestError
from pillion.runtime.prompts import Prompt, pack_token_ids

MAX_PROMPTS: Final = 1024

_RENAMED: Final = {"prompt_token_ids": "prompt"}


async def completions(gateway: Gateway, exchange: Exchange, data: bytes) -> None:
    """Completes one prompt or many, whole or as a stream."""
    async with gateway.counted(exchange) as generation:
        body = read_body(data, CompletionRequest)
        request = body.request
        gateway.check_model(request.model)
        params = completion_sampling(request)
        prompts = read_prompts(request.prompt)
        renamed = {**_RENAMED, STRUCTURE: structure_field(request) or STRUCTURE}
        try:
            echoes = [await _echo(gateway, request, prompt) for prompt in prompts]
            generations = [_generation(gateway, request, prompt, params) for prompt in prompts]
            async with Answers(gateway.link, generations, generation) as answers:
                shape = _CompletionShape(gateway.model_name, request, params.n, echoes)
                if request.stream:
                    await stream_answers(exchange, answers, shape, body.headers, renamed)
                else:
                    while chunks := await answers.next():
                        shape.add(chunks)
                    reply = msgspec.json.encode(shape.whole())
                    await exchange.reply(200, reply, body.headers)
        except (RequestError, DaemonUnavailable) as error:
            raise http_error_of(error, renamed) from error


def read_prompts(prompt: Any) -> list[Prompt]:
    """The prompts of a body: a text, token ids, or a list of either. Raises HttpError 400."""
    if isinstance(prompt, str):
        return [Prompt(text=prompt)]
    if not prompt:
        raise invalid("prompt: the list is empty", "prompt")
    if isinstance(prompt[0], int):
        return [_ids_prompt(prompt, "prompt")]
    if len(prompt) > MAX_PROMPTS:
        raise invalid(f"prompt takes at most {MAX_PROMPTS} prompts, got {len(prompt)}", "prompt")
    return [_one_prompt(each, f"prompt[{index}]") for index, each in enumerate(prompt)]


def _one_prompt(prompt: Any, place: str) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(text=prompt)
    if isinstance(prompt, list):
        return _ids_prompt(prompt, place)
    raise invalid(f"{place}: expected a text or token ids, got {prompt!r:.80}", "prompt")


def _ids_prompt(token_ids: list[Any], place: str) -> Prompt:
    if not token_ids:
        raise invalid(f"{place}: there must be at least one token id", "prompt")
    try:
        return Prompt(token_ids=pack_token_ids(token_ids, place))
    except InvalidRequest as error:
        raise invalid(str(error), "prompt") from error


def _generation(
    gateway: Gateway, request: CompletionRequest, prompt: Prompt, params: SamplingParams
) -> GenerateRequest:
    options = request.stream_options
    return GenerateRequest(
        client_request_id=gateway.link.new_request_id(),
        prompt=prompt.text,
        prompt_token_ids=prompt.token_ids,
        sampling_params=params,
        priority=request.priority or 0,
        cache_salt=request.cache_salt or "",
        add_special_tokens=request.add_special_tokens is not False,
        return_prompt_token_ids=bool(
            request.return_token_ids or (options and options.continuous_usage_stats)
        ),
        stream=bool(request.stream),
    )


async def _echo(gateway: Gateway, request: CompletionRequest, prompt: Prompt) -> PromptEcho | None:
    """The prompt's text as its answers repeat it; None if they don't."""
    if not request.echo:
        return None
    keep = request.truncate_prompt_tokens
    if prompt.text is not None and keep is None and request.logprobs is None:
        return PromptEcho(prompt.text, "")
    if prompt.token_ids is not None:
        token_ids = unpack_ids(prompt.token_ids)
    else:
        question = TokenizeRequest(
            client_request_id=gateway.link.new_request_id(),
            prompt=prompt.text,
            add_special_tokens=request.add_special_tokens is not False,
        )
        token_ids = unpack_ids((await gateway.link.tokenize(question)).token_ids)
    kept = token_ids if keep is None else token_ids[-keep:]
    text = prompt.text if keep is None else None
    if text is None:
        text = await gateway.link.detokenize(kept)
    first_token = ""
    if request.logprobs is not None:
        first_token = await gateway.link.detokenize(kept[:1])
    return PromptEcho(text, first_token)


class _CompletionShape(AnswerShape):
    """Completions of all prompts: as events, or joined."""

    def __init__(
        self,
        model: str,
        request: CompletionRequest,
        num_samples: int,
        echoes: list[PromptEcho | None],
    ) -> None:
        self._model = model
        self._id = new_id("cmpl-")
        self._created = int(time.time())
        self._usage = UsageCount()
        self._usage_mode = usage_mode(request.stream_options)
        self._without_output = bool(request.echo) and request.max_tokens == 0
        self._prompts = [
            PromptChoices(request, index * num_samples, echo) for index, echo in enumerate(echoes)
        ]
        self._parts: dict[int, list[CompletionChoice]] = {}

    def add(self, chunks: list[PromptChunk]) -> None:
        """Keeps what is new for `whole`."""
        for prompt, chunk in chunks:
            self._usage.add(chunk)
            choice = self._prompts[prompt].choice(chunk)
            self._parts.setdefault(choice.index, []).append(choice)

    def whole(self) -> Completion:
        """The completion of what was added."""
        choices = [join_choices(parts) for _, parts in sorted(self._parts.items())]
        return self._completion(choices, self._usage.whole(without_output=self._without_output))

    def events(self, chunks: list[PromptChunk]) -> bytes:
        """An event for each chunk."""
        parts = []
        for prompt, chunk in chunks:
            self._usage.add(chunk)
            choice = self._prompts[prompt].choice(chunk)
            parts.append(event(self._completion([choice], self._usage.of_event(self._usage_mode))))
        return b"".join(parts)

    def end(self) -> bytes:
        """The usage, if it was asked for."""
        if self._usage_mode == "none":
            return DONE
        usage = self._usage.whole(without_output=self._without_output)
        return event(self._completion([], usage)) + DONE

    def _completion(
        self, choices: list[CompletionChoice], usage: Usage | UnsetType | None
    ) -> Completion:
        return Completion(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage
        )
