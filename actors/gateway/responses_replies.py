"""What POST /v1/responses answers."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from pillion.actors.gateway.openai_replies import ChatTokenLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseEventType = Literal[
    "response.created",
    "response.in_progress",
    "response.completed",
    "response.incomplete",
    "response.failed",
]
ItemEventType = Literal["response.output_item.added", "response.output_item.done"]
PartEventType = Literal["response.content_part.added", "response.content_part.done"]
DeltaEventType = Literal[
    "response.output_text.delta",
    "response.reasoning_text.delta",
    "response.function_call_arguments.delta",
]
DoneEventType = Literal[
    "response.output_text.done",
    "response.reasoning_text.done",
    "response.function_call_arguments.done",
]


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """Text of the answer."""

    text: str
    annotations: list[str] = []
    logprobs: list[ChatTokenLogprob] = []


class ReasoningText(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"
):
    """What the model said to itself."""

    text: str


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """The answer in words."""

    id: str
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """Reasoning that came before what follows."""

    id: str
    status: ItemStatus
    summary: list[str] = []
    content: list[ReasoningText]


class FunctionCall(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"
):
    """A call that the model asks for; its result comes back as a `function_call_output` with `call_id`."""

    id: str
    call_id: str
    name: str
    arguments: Annotated[
        str, Meta(description="JSON, as the model wrote it: what was cut off is not valid")
    ]
    status: ItemStatus


Item = OutputMessage | ReasoningItem | FunctionCall


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer's tokens were spent on."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response is not complete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of POST /v1/responses, and what the first and last events of its stream carry."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[Item]
    usage: Annotated[ResponseUsage | None, Meta(description="null before the end")] = None
    # What was asked for.
    instructions: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    reasoning: dict[str, Any]
    text: dict[str, Any]
    metadata: dict[str, Any]
    truncation: Literal["disabled"] = "disabled"
    store: Literal[False] = False
    background: Literal[False] = False
    previous_response_id: None = None


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A response begins or ends."""

    type: ResponseEventType
    sequence_number: int
    response: Response


class ItemEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An item begins or is complete."""

    type: ItemEventType
    sequence_number: int
    output_index: int
    item: Item


class PartEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The text of an item begins or is complete."""

    type: PartEventType
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int = 0
    part: OutputText | ReasoningText


class DeltaEvent(msgspec.Struct, frozen=True, kw_only=True):
    """More of an item's text or arguments."""

    type: DeltaEventType
    sequence_number: int
    item_id: str
    output_index: int
    content_index: Annotated[int | UnsetType, Meta(description="of texts")] = UNSET
    delta: str
    logprobs: Annotated[
        list[ChatTokenLogprob] | UnsetType, Meta(description="of `output_text`")
    ] = UNSET


class DoneEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An item's text or arguments are complete."""

    type: DoneEventType
    sequence_number: int
    item_id: str
    output_index: int
    content_index: Annotated[int | UnsetType, Meta(description="of texts")] = UNSET
    text: Annotated[str | UnsetType, Meta(description="of texts")] = UNSET
    logprobs: Annotated[
        list[ChatTokenLogprob] | UnsetType, Meta(description="of `output_text`")
    ] = UNSET
    name: Annotated[str | UnsetType, Meta(description="of calls")] = UNSET
    arguments: Annotated[str | UnsetType, Meta(description="of calls")] = UNSET
