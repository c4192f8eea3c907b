"""What the OpenAI-compatible routes answer. Fields that are UNSET do not appear."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from pillion.messages.ids import FinishReason

# Per prompt token: None for the first, else token id -> entry; the token itself comes first.
PromptLogprobs = list["dict[str, PromptLogprob] | None"]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Where prompt tokens came from."""

    cached_tokens: Annotated[int, Meta(description="prompt tokens that were in the prefix cache")]


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """What the answer's tokens were spent on."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a whole request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Annotated[
        PromptTokensDetails | UnsetType, Meta(description="not before the end")
    ] = UNSET
    completion_tokens_details: Annotated[
        CompletionTokensDetails | UnsetType,
        Meta(description="not before the end, and only where the model has reasoned"),
    ] = UNSET


class PromptLogprob(msgspec.Struct, frozen=True):
    """One candidate at one position of the prompt. Rank 1 is the likeliest."""

    logprob: float
    rank: Annotated[int, Meta(description="1 is the likeliest")]
    decoded_token: str


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the likeliest tokens at a position. `bytes` is null for a part of a character."""

    token: str
    logprob: Annotated[float, Meta(description="at least -9999")]
    bytes: Annotated[list[int] | None, Meta(description="null for a part of a character")]


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    """A sampled token and the likeliest ones at its position."""

    token: str
    logprob: Annotated[float, Meta(description="at least -9999")]
    bytes: Annotated[list[int] | None, Meta(description="null for a part of a character")]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of an answer's tokens."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities as columns; with `echo` the prompt's tokens come first, the very first with null."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model wants to call; in a stream, what is new of it."""

    name: Annotated[str | UnsetType, Meta(description="in a call's first event")] = UNSET
    arguments: Annotated[
        str, Meta(description="JSON, as the model wrote it: what was cut off is not valid")
    ]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call. `index` is for streams, where `id` and `type` come with a call's first event."""

    index: Annotated[int | UnsetType, Meta(description="in streams")] = UNSET
    id: Annotated[str | UnsetType, Meta(description="in a stream, in a call's first event")] = UNSET
    type: Annotated[Literal["function"] | UnsetType, Meta(description="likewise")] = UNSET
    function: CalledFunction


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The model's answer. `content` is null where there are calls and no text."""

    role: Literal["assistant"] = "assistant"
    content: Annotated[str | None, Meta(description="null where there are calls and no text")]
    refusal: None = None
    reasoning: Annotated[
        str | UnsetType, Meta(description="what the model said to itself, if it did")
    ] = UNSET
    reasoning_content: Annotated[
        str | UnsetType, Meta(description="the same, under the name that other clients read")
    ] = UNSET
    tool_calls: Annotated[list[ToolCall] | UnsetType, Meta(description="if there are any")] = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the n answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason
    stop_reason: Annotated[
        int | str | None, Meta(description="the stop text or token that ended it")
    ] = None
    token_ids: Annotated[list[int] | UnsetType, Meta(description="with `return_token_ids`")] = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: Annotated[
        PromptLogprobs | UnsetType,
        Meta(
            description="with `prompt_logprobs`: null for the first token, else token id to entry"
        ),
    ] = UNSET
    prompt_token_ids: Annotated[
        list[int] | UnsetType, Meta(description="with `return_token_ids`")
    ] = UNSET


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of an answer."""

    role: Annotated[
        Literal["assistant"] | UnsetType, Meta(description="in the first event of each answer")
    ] = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: Annotated[str | UnsetType, Meta(description="the same as `reasoning`")] = (
        UNSET
    )
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of one of the n answers."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: Annotated[
        int | str | UnsetType | None,
        Meta(description="with a finish_reason: the stop text or token that ended it"),
    ] = UNSET
    token_ids: Annotated[list[int] | UnsetType, Meta(description="with `return_token_ids`")] = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: Annotated[list[ChatChunkChoice], Meta(description="empty in the event of the usage")]
    usage: Annotated[
        Usage | UnsetType | None,
        Meta(description="null before the end, unless `continuous_usage_stats`"),
    ] = UNSET
    prompt_logprobs: Annotated[
        PromptLogprobs | UnsetType, Meta(description="in the first event, with `prompt_logprobs`")
    ] = UNSET
    prompt_token_ids: Annotated[
        list[int] | UnsetType, Meta(description="in the first event, with `return_token_ids`")
    ] = UNSET


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to one prompt; in a stream, what is new of it. `index` is prompt * n + sample."""

    index: Annotated[int, Meta(description="the prompt's place times n plus the sample's")]
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: Annotated[
        int | str | None, Meta(description="the stop text or token that ended it")
    ] = None
    prompt_logprobs: Annotated[
        PromptLogprobs | UnsetType, Meta(description="with `prompt_logprobs`")
    ] = UNSET
    token_ids: Annotated[list[int] | UnsetType, Meta(description="with `return_token_ids`")] = UNSET
    prompt_token_ids: Annotated[
        list[int] | UnsetType, Meta(description="with `return_token_ids`")
    ] = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of POST /v1/completions, and one event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["pillion"] = "pillion"
    max_model_len: Annotated[
        int | None, Meta(description="longest sequence in tokens; null while the model loads")
    ]


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[Model]


class TokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of POST /detokenize."""

    prompt: str


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /tokenizer_info: what a client needs beside /tokenize and /detokenize to tokenize here."""

    bos_token: Annotated[str | None, Meta(description="null where the model has none")] = None
    eos_token: str | None = None
    pad_token: str | None = None
    unk_token: str | None = None
    chat_template: Annotated[str | None, Meta(description="of chats without tools, in Jinja")] = (
        None
    )


class VersionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /version."""

    version: str
