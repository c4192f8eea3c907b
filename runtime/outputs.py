"""What a request gives back, with the names that vLLM users know."""

from dataclasses import dataclass, field

from pillion.messages.ids import FinishReason


@dataclass(slots=True)
class Logprob:
    """Log-probability of one token at one position. Rank 1 is the likeliest token."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class ToolCall:
    """A call of a function that the model asks for; in a stream, what is new of it.

    `index` counts the calls of a sample. `id` and `name` come with a call's first part. `arguments` is a
    JSON object as text, as the model wrote it: one that was cut off is no valid JSON.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class CompletionOutput:
    """One of the n samples of a request; in a stream, what is new of it.

    `logprobs` has, if asked for, a dict per token: the token's own entry and the likeliest ones. A sample
    with finish_reason "error" says why in `error`, and its text and tokens are those made until then.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    # With `parse_output`: what the model said to itself, and the functions that it wants to call.
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def finished(self) -> bool:
        """Whether no further token follows."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """When things happened, in seconds since the request was sent."""

    arrival_time: float  # when that was, in seconds since the epoch
    scheduled_s: float | None = None  # it got its place among the running ones
    # As the client saw it; as the daemon saw it for a request that was not streamed.
    first_token_s: float | None = None
    finished_s: float | None = None
    # The worker's own time for the step that gave the first token.
    first_step_s: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """A request and its samples; in a stream, what is new of them.

    `prompt` is None where the client gave token ids or messages. `prompt_logprobs` has an entry per prompt
    token, None for the first. `cache_miss_reason` says why no more of the prompt was in the prefix cache.
    """

    request_id: str
    prompt: str | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    metrics: RequestMetrics | None = None
    num_cached_tokens: int | None = None
    cache_miss_reason: str | None = None
