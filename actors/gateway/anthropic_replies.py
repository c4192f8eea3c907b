"""What the routes that speak Anthropic's API answer."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Text of the answer."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """What the model said to itself."""

    thinking: str
    signature: Annotated[str, Meta(description="always empty: nothing here is encrypted")] = ""


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    """A call that the model asks for."""

    id: str
    name: str
    input: Annotated[
        dict[str, Any],
        Meta(description="the arguments; empty where they were cut off or are no object"),
    ]


Block = TextBlock | ThinkingBlock | ToolUseBlock


class AnthropicTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer's tokens were spent on."""

    thinking_tokens: int


class AnthropicUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request. In `message_start` it is not known yet what was cached."""

    input_tokens: Annotated[int, Meta(description="of the prompt, without those that were cached")]
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    output_tokens_details: Annotated[
        AnthropicTokensDetails | UnsetType,
        Meta(description="at the end, where the model has reasoned"),
    ] = UNSET


class AnthropicAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of POST /v1/messages."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: Annotated[str | None, Meta(description="the one that ended the answer")]
    usage: AnthropicUsage


class MessageStart(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message_start"
):
    """First event of a stream."""

    message: AnthropicAnswer


class BlockStart(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_start"
):
    """A block begins, empty."""

    index: int
    content_block: Block


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text_delta"):
    """More of a text block."""

    text: str


class ThinkingDelta(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking_delta"
):
    """More of a thinking block."""

    thinking: str


class SignatureDelta(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="signature_delta"
):
    """Ends a thinking block."""

    signature: str = ""


class InputDelta(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_json_delta"
):
    """More of a call's arguments."""

    partial_json: str


class BlockDelta(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_delta"
):
    """What is new of a block."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_stop"
):
    """A block is complete."""

    index: int


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """Why the answer ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message_delta"
):
    """The answer is complete."""

    delta: Ending
    usage: AnthropicUsage


class MessageStop(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message_stop"):
    """Last event of a stream."""


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of POST /v1/messages/count_tokens."""

    input_tokens: int
