"""What clients may send to the routes that speak Anthropic's API. A field that is null is as if left out."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta


class AnthropicMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a conversation."""

    role: Literal["user", "assistant"]
    content: Annotated[
        str | list[dict[str, Any]],
        Meta(
            description="a text, or blocks of type `text`, `tool_use`, `tool_result`, `thinking` and"
            " `redacted_thinking`; an assistant's message at the end is continued"
        ),
    ]


class AnthropicTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    input_schema: Annotated[
        dict[str, Any] | None, Meta(description="JSON schema of the arguments")
    ] = None
    strict: Annotated[
        bool | None,
        Meta(
            description="arguments hold to the schema; those of calls that must come do in any case"
        ),
    ] = None
    type: Annotated[
        str | None, Meta(description="`custom`; tools that the server would run are refused")
    ] = None


class AnthropicToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a function may or must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: Annotated[str | None, Meta(description="of the function, with `tool`")] = None
    disable_parallel_tool_use: Annotated[
        bool | None, Meta(description="nothing follows the first call")
    ] = None


class AnthropicThinking(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the model reasons first; left out, its chat template decides."""

    NO_EFFECT: ClassVar = frozenset(("budget_tokens",))

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[
        int | None, Meta(description="accepted, has no effect: max_tokens alone limits the answer")
    ] = None


class AnthropicOutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer shall be like."""

    effort: Annotated[
        str | None, Meta(description="a variable of the chat template, `reasoning_effort`")
    ] = None
    format: Annotated[
        dict[str, Any] | None, Meta(description='`{"type": "json_schema", "schema": ...}`')
    ] = None


class ConversationFields(msgspec.Struct, frozen=True, kw_only=True):
    """What both routes read."""

    messages: list[AnthropicMessage]
    model: Annotated[
        str | None, Meta(description="the served name; anything else is answered with 404")
    ] = None
    system: Annotated[
        str | list[dict[str, Any]] | None, Meta(description="a text, or blocks of type `text`")
    ] = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: AnthropicThinking | None = None
    output_config: AnthropicOutputConfig | None = None


class MessagesRequest(ConversationFields, frozen=True, kw_only=True):
    """Body of POST /v1/messages."""

    NO_EFFECT: ClassVar = frozenset(("metadata",))

    max_tokens: Annotated[int, Meta(description="longest answer, cut to what fits the context")]
    stream: Annotated[
        bool | None, Meta(description="send server-sent events as the answer grows")
    ] = None
    stop_sequences: Annotated[
        list[str] | None, Meta(description="up to 64 texts that end the answer")
    ] = None
    temperature: Annotated[float | None, Meta(description="0 (greedy) to 100, 1 if left out")] = (
        None
    )
    top_p: float | None = None
    top_k: int | None = None
    metadata: Annotated[dict[str, Any] | None, Meta(description="accepted, has no effect")] = None


class CountTokensRequest(ConversationFields, frozen=True, kw_only=True):
    """Body of POST /v1/messages/count_tokens."""
