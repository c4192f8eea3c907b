"""Token counts of a request while its chunks come."""

from typing import Literal

from msgspec import UNSET, UnsetType

from pillion.actors.gateway.anthropic_replies import AnthropicTokensDetails, AnthropicUsage
from pillion.actors.gateway.openai_replies import (
    CompletionTokensDetails,
    PromptTokensDetails,
    Usage,
)
from pillion.actors.gateway.openai_requests import StreamOptions
from pillion.actors.gateway.responses_replies import (
    InputTokensDetails,
    OutputTokensDetails,
    ResponseUsage,
)
from pillion.messages.codec import num_ids
from pillion.messages.text import GenerateChunk

# Whether a stream tells its usage never, at the end, or in every event too.
UsageMode = Literal["none", "end", "every"]


def usage_mode(options: StreamOptions | None) -> UsageMode:
    """What `stream_options` asks for."""
    if options is None or not options.include_usage:
        return "none"
    return "every" if options.continuous_usage_stats else "end"


class UsageCount:
    """Sums over all prompts and samples of a request."""

    def __init__(self) -> None:
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._output_tokens = 0
        self._early_prompt_tokens = 0
        self._reasoning_tokens = 0

    def add(self, chunk: GenerateChunk) -> None:
        """Counts what a chunk brings."""
        self._output_tokens += num_ids(chunk.token_ids)
        if chunk.prompt_token_ids is not None:
            self._early_prompt_tokens += num_ids(chunk.prompt_token_ids)
        if chunk.usage is not None:
            self._prompt_tokens += chunk.usage.prompt_tokens
            self._cached_tokens += chunk.usage.cached_tokens
            self._reasoning_tokens += chunk.usage.reasoning_tokens

    def so_far(self) -> Usage:
        """Counts while the request goes on; prompts count from their first chunk."""
        prompt_tokens = max(self._prompt_tokens, self._early_prompt_tokens)
        return Usage(prompt_tokens, self._output_tokens, prompt_tokens + self._output_tokens)

    def whole(self, *, without_output: bool = False) -> Usage:
        """Counts at the end. `without_output`: the client wanted no tokens."""
        output_tokens = 0 if without_output else self._output_tokens
        return Usage(
            self._prompt_tokens,
            output_tokens,
            self._prompt_tokens + output_tokens,
            PromptTokensDetails(self._cached_tokens),
            CompletionTokensDetails(self._reasoning_tokens) if self._reasoning_tokens else UNSET,
        )

    def anthropic(self) -> AnthropicUsage:
        """The counts so far as Anthropic's clients read them."""
        prompt_tokens = max(self._prompt_tokens, self._early_prompt_tokens)
        return AnthropicUsage(
            input_tokens=prompt_tokens - self._cached_tokens,
            output_tokens=self._output_tokens,
            cache_read_input_tokens=self._cached_tokens,
            output_tokens_details=(
                AnthropicTokensDetails(thinking_tokens=self._reasoning_tokens)
                if self._reasoning_tokens
                else UNSET
            ),
        )

    def of_response(self) -> ResponseUsage:
        """Counts at the end, as the newer API of OpenAI has them."""
        return ResponseUsage(
            input_tokens=self._prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=self._cached_tokens),
            output_tokens=self._output_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=self._reasoning_tokens),
            total_tokens=self._prompt_tokens + self._output_tokens,
        )

    def of_event(self, mode: UsageMode) -> Usage | UnsetType | None:
        """The `usage` of an event that is not the last."""
        if mode == "none":
            return UNSET
        return self.so_far() if mode == "every" else None
