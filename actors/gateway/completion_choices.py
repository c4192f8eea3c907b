"""The answers to one prompt of a plain completion, in the shape of its choices."""

from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from pillion.actors.gateway.logprob_shapes import (
    completion_logprobs,
    join_logprobs,
    prompt_logprobs,
)
from pillion.actors.gateway.openai_replies import (
    CompletionChoice,
    CompletionLogprobs,
    PromptLogprobs,
)
from pillion.actors.gateway.openai_requests import CompletionRequest
from pillion.messages.codec import unpack_ids
from pillion.messages.text import GenerateChunk


@dataclass(frozen=True, slots=True)
class PromptEcho:
    """A prompt that its answers begin with."""

    text: str
    first_token: str  # its text; only known, and only needed, with log-probabilities


class PromptChoices:
    """Turns the chunks of one prompt's samples into choices that hold what is new."""

    def __init__(
        self, request: CompletionRequest, first_index: int, echo: PromptEcho | None
    ) -> None:
        self._request = request
        self._first_index = first_index
        self._echo = echo
        self._without_output = bool(request.echo) and request.max_tokens == 0
        self._num_chars: dict[int, int] = {}  # sample -> characters of its text so far
        # From the first chunk, for every sample's first choice.
        self._echoed: CompletionLogprobs | None = None
        self._prompt_logprobs: PromptLogprobs | UnsetType = UNSET
        self._prompt_ids: list[int] | UnsetType = UNSET

    def choice(self, chunk: GenerateChunk) -> CompletionChoice:
        """What is new of a sample; its first choice also has what there is to say of the prompt."""
        self._note_prompt(chunk)
        is_first = chunk.index not in self._num_chars
        offset = self._num_chars.setdefault(chunk.index, 0)
        text = "" if self._without_output else chunk.text
        logprobs = None
        if is_first and self._echo is not None:
            text = self._echo.text + text
            logprobs = self._echoed
        if chunk.logprobs is not None and not self._without_output:
            start = offset
            if logprobs is not None:
                start = sum(map(len, logprobs.tokens))
            own = completion_logprobs(chunk.logprobs, start)
            logprobs = own if logprobs is None else join_logprobs(logprobs, own)
        if logprobs is not None and logprobs.tokens:
            offset = logprobs.text_offset[-1] + len(logprobs.tokens[-1])
        self._num_chars[chunk.index] = offset
        token_ids = [] if self._without_output else unpack_ids(chunk.token_ids)
        return CompletionChoice(
            index=self._first_index + chunk.index,
            text=text,
            logprobs=logprobs,
            finish_reason=chunk.finish_reason,
            stop_reason=chunk.stop_reason,
            prompt_logprobs=self._prompt_logprobs if is_first else UNSET,
            token_ids=token_ids if self._request.return_token_ids else UNSET,
            prompt_token_ids=self._prompt_ids if is_first else UNSET,
        )

    def _note_prompt(self, chunk: GenerateChunk) -> None:
        if chunk.prompt_token_ids is not None and self._request.return_token_ids:
            self._prompt_ids = unpack_ids(chunk.prompt_token_ids)
        if chunk.prompt_logprobs is None:
            return
        if self._request.prompt_logprobs is not None:
            self._prompt_logprobs = prompt_logprobs(chunk.prompt_logprobs)
        if self._echo is not None and self._request.logprobs is not None:
            self._echoed = completion_logprobs(chunk.prompt_logprobs, 0, self._echo.first_token)


def join_choices(choices: list[CompletionChoice]) -> CompletionChoice:
    """One choice from what came of it."""
    logprobs: CompletionLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET
    for choice in choices:
        if choice.logprobs is not None:
            logprobs = (
                choice.logprobs if logprobs is None else join_logprobs(logprobs, choice.logprobs)
            )
        if choice.token_ids is not UNSET:
            token_ids = choice.token_ids if token_ids is UNSET else token_ids + choice.token_ids
    first, last = choices[0], choices[-1]
    return msgspec.structs.replace(
        first,
        text="".join([choice.text for choice in choices]),
        logprobs=logprobs,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        token_ids=token_ids,
    )
