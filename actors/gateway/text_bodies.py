"""What clients may send to /tokenize, /detokenize and /v1/embeddings; null is as if a field were left out."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pillion.actors.gateway.openai_requests import (
    AddGenerationPrompt,
    AddSpecialTokens,
    ChatTemplateKwargs,
    ContinueFinalMessage,
    Message,
    ModelName,
)


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /tokenize: one of prompt and messages."""

    model: ModelName = None
    prompt: Annotated[str | None, Meta(description="one of `prompt` and `messages`")] = None
    messages: Annotated[
        list[Message] | None, Meta(description="one of `prompt` and `messages`")
    ] = None
    add_special_tokens: AddSpecialTokens = None
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = None
    chat_template_kwargs: ChatTemplateKwargs = None
    tools: Annotated[list[dict[str, Any]] | None, Meta(description="go into the template")] = None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /detokenize."""

    tokens: Annotated[list[int], Meta(description="token ids")]
    model: ModelName = None
    skip_special_tokens: Annotated[
        bool | None, Meta(description="leave special tokens out; false if left out")
    ] = None


class EmbeddingBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /v1/embeddings."""

    input: Annotated[
        str | list[str | int | list[int]],
        Meta(description="a text, token ids, or a list of either"),
    ]
    model: ModelName = None
