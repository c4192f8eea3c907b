"""What clients may send to the OpenAI-compatible routes. Every field may be null, which is as if left out."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Message = dict[str, Any]
ModelName = Annotated[
    str | None,
    Meta(description="the served name; anything else is answered with 404. May be left out."),
]
AddGenerationPrompt = Annotated[
    bool | None, Meta(description="begin the assistant's turn; true if left out")
]
ContinueFinalMessage = Annotated[
    bool | None, Meta(description="leave the last message open and continue it")
]
ChatTemplateKwargs = Annotated[
    dict[str, Any] | None, Meta(description="variables for the template")
]
AddSpecialTokens = Annotated[
    bool | None,
    Meta(description="put the tokenizer's own tokens in front of a text; true if left out"),
]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream tells beside the answer."""

    include_usage: Annotated[
        bool | None, Meta(description="a last event with the usage of the whole request")
    ] = None
    continuous_usage_stats: Annotated[
        bool | None, Meta(description="beside it: the usage so far in every event")
    ] = None


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that chat and plain completions share."""

    model: ModelName = None
    stream: Annotated[
        bool | None, Meta(description="send server-sent events as the answer grows")
    ] = None
    stream_options: Annotated[
        StreamOptions | None, Meta(description="what a stream tells beside the answer")
    ] = None
    n: Annotated[int | None, Meta(description="how many answers, 1 to 128")] = None
    max_tokens: Annotated[
        int | None,
        Meta(
            description="longest answer, cut to what fits; left out: 16 for completions, up to the end of the"
            " context for chats"
        ),
    ] = None
    min_tokens: Annotated[
        int | None, Meta(description="tokens before which nothing ends the answer")
    ] = None
    temperature: Annotated[float | None, Meta(description="0 (greedy) to 100, 1 if left out")] = (
        None
    )
    top_p: Annotated[
        float | None,
        Meta(description="keep the likeliest tokens that together have this probability"),
    ] = None
    top_k: Annotated[
        int | None, Meta(description="keep so many of the likeliest tokens; 0 or -1: all")
    ] = None
    min_p: Annotated[
        float | None,
        Meta(description="keep tokens that have this share of the likeliest one's probability"),
    ] = None
    seed: Annotated[int | None, Meta(description="makes the answer repeatable")] = None
    stop: Annotated[
        str | list[str] | None, Meta(description="a text or up to 64 texts that end the answer")
    ] = None
    stop_token_ids: Annotated[list[int] | None, Meta(description="tokens that end it")] = None
    include_stop_str_in_output: Annotated[
        bool | None, Meta(description="keep the text of `stop`")
    ] = None
    ignore_eos: Annotated[bool | None, Meta(description="go on behind the model's own end")] = None
    presence_penalty: Annotated[
        float | None, Meta(description="-2 to 2, on tokens that have come in the answer")
    ] = None
    frequency_penalty: Annotated[
        float | None, Meta(description="-2 to 2, for each time that a token has come in the answer")
    ] = None
    repetition_penalty: Annotated[float | None, Meta(description="0.01 to 100; 1 is none")] = None
    logit_bias: Annotated[
        dict[str, float] | None,
        Meta(description="token id to a number from -100 to 100, at most 1024"),
    ] = None
    allowed_token_ids: Annotated[
        list[int] | None, Meta(description="the only tokens that may come")
    ] = None
    bad_words: Annotated[
        list[str] | None, Meta(description="texts that may not come, at most 256")
    ] = None
    skip_special_tokens: Annotated[
        bool | None, Meta(description="leave special tokens out of the text; true if left out")
    ] = None
    spaces_between_special_tokens: Annotated[
        bool | None,
        Meta(description="spaces between them, where the tokenizer writes words; true if left out"),
    ] = None
    truncate_prompt_tokens: Annotated[
        int | None, Meta(description="keep only so many last tokens of the prompt")
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        Meta(description="log-probabilities of the prompt's tokens and of so many likeliest ones"),
    ] = None
    return_token_ids: Annotated[
        bool | None, Meta(description="adds `prompt_token_ids` and `token_ids`")
    ] = None
    priority: Annotated[int | None, Meta(description="lower runs earlier; 0 if left out")] = None
    cache_salt: Annotated[
        str | None, Meta(description="requests with different salts share no cached blocks")
    ] = None
    best_of: Annotated[
        int | None,
        Meta(
            description="refused unless it equals `n`: the other answers would be computed and thrown away"
        ),
    ] = None
    response_format: Annotated[
        dict[str, Any] | None,
        Meta(
            description="the form of the answer: `text`, `json_object` (any JSON object) or `json_schema` (what"
            " `json_schema.schema` describes)"
        ),
    ] = None
    structured_outputs: Annotated[
        dict[str, Any] | None,
        Meta(
            description="the form of the answer: one of `json` (a schema), `regex`, `choice` (a list of texts),"
            " `grammar` (GBNF or Lark) and `json_object` (true)"
        ),
    ] = None
    guided_json: Annotated[
        dict[str, Any] | str | None, Meta(description="the older name of `structured_outputs.json`")
    ] = None
    guided_regex: Annotated[
        str | None, Meta(description="the older name of `structured_outputs.regex`")
    ] = None
    guided_choice: Annotated[
        list[str] | None, Meta(description="the older name of `structured_outputs.choice`")
    ] = None
    guided_grammar: Annotated[
        str | None, Meta(description="the older name of `structured_outputs.grammar`")
    ] = None


class ChatCompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[
        list[Message],
        Meta(
            description="the chat: objects with `role` and `content` (a text, or parts of type `text`)"
        ),
    ]
    max_completion_tokens: Annotated[
        int | None, Meta(description="the newer name of `max_tokens`; it wins if both are given")
    ] = None
    logprobs: Annotated[
        bool | None, Meta(description="log-probabilities of the answer's tokens")
    ] = None
    top_logprobs: Annotated[
        int | None, Meta(description="of up to 64 likeliest tokens at each of them")
    ] = None
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = None
    chat_template: Annotated[
        str | None,
        Meta(
            description="a template in place of the model's; refused unless the daemon has `allow_request_templates`"
        ),
    ] = None
    chat_template_kwargs: ChatTemplateKwargs = None
    tools: Annotated[
        list[dict[str, Any]] | None,
        Meta(
            description='functions that the model may call: `{"type": "function", "function": {"name": ...,'
            ' "description": ..., "parameters": ...}}`'
        ),
    ] = None
    tool_choice: Annotated[
        str | dict[str, Any] | None,
        Meta(
            description="`auto`, `none` (the model does not see the tools), `required`, or"
            ' `{"type": "function", "function": {"name": ...}}`'
        ),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="false: nothing follows the first call")
    ] = None
    reasoning_effort: Annotated[
        str | None,
        Meta(
            description="a variable of the chat template; `none` also switches thinking off where the template can"
        ),
    ] = None
    functions: Annotated[
        list[dict[str, Any]] | None, Meta(description="refused unless empty: use `tools`")
    ] = None
    function_call: Annotated[
        str | dict[str, Any] | None,
        Meta(description="refused unless `none` or `auto`: use `tool_choice`"),
    ] = None
    modalities: Annotated[
        list[str] | None, Meta(description="refused unless text alone is asked for")
    ] = None
    audio: Annotated[dict[str, Any] | None, Meta(description="refused")] = None


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of POST /v1/completions."""

    prompt: Annotated[
        str | list[str | int | list[int]],
        Meta(description="a text, a list of token ids, or a list of up to 1024 of either"),
    ]
    echo: Annotated[
        bool | None,
        Meta(
            description="repeat the prompt in front of the answer, with `logprobs` its log-probabilities"
            " too; with `max_tokens` 0 the prompt alone"
        ),
    ] = None
    logprobs: Annotated[
        int | None,
        Meta(description="log-probabilities of the tokens, and of up to 64 likeliest ones"),
    ] = None
    add_special_tokens: AddSpecialTokens = None
    suffix: Annotated[str | None, Meta(description="refused unless empty")] = None
