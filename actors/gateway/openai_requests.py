"""What clients may send to the OpenAI-compatible routes. Every field may be null, which is as if left out."""

from typing import Any

import msgspec

Message = dict[str, Any]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream tells beside the answer."""

    include_usage: bool | None = None  # a last event with the usage of the whole request
    continuous_usage_stats: bool | None = None  # the usage so far in every event


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that chat and plain completions share."""

    model: str | None = None  # None: the one that is served
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None  # token id in decimal -> bias
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None  # keep only so many last tokens of the prompt
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    priority: int | None = None  # lower runs earlier
    cache_salt: str | None = None  # requests with different salts share no cached blocks
    # Refused, each with its reason, unless the value asks for nothing.
    best_of: int | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class ChatCompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None  # the newer name of max_tokens, and stronger
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None  # refused unless the daemon allows it
    chat_template_kwargs: dict[str, Any] | None = None
    # Refused unless the value asks for nothing.
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of POST /v1/completions."""

    prompt: str | list[str | int | list[int]]  # a text, token ids, or a list of either
    echo: bool | None = None
    logprobs: int | None = None
    add_special_tokens: bool | None = None  # in front of a text prompt
    suffix: str | None = None  # refused unless empty


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /tokenize: one of prompt and messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /detokenize."""

    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool | None = None


class EmbeddingBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /v1/embeddings."""

    input: str | list[str | int | list[int]]
    model: str | None = None
