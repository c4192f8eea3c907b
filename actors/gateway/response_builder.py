"""A response as it grows: its items, and the events that tell of them."""

from typing import Final, Literal

from msgspec import UNSET, structs

from pillion.actors.gateway.gateway import new_id
from pillion.actors.gateway.http_errors import HttpError
from pillion.actors.gateway.logprob_shapes import chat_logprobs
from pillion.actors.gateway.openai_replies import ChatTokenLogprob
from pillion.actors.gateway.responses_replies import (
    DeltaEvent,
    DeltaEventType,
    DoneEvent,
    DoneEventType,
    FunctionCall,
    IncompleteDetails,
    Item,
    ItemEvent,
    ItemStatus,
    OutputMessage,
    OutputText,
    PartEvent,
    PartEventType,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseError,
    ResponseEvent,
    ResponseEventType,
)
from pillion.actors.gateway.sample import ordered_parts
from pillion.actors.gateway.usage import UsageCount
from pillion.messages.ids import FinishReason
from pillion.messages.text import GenerateChunk, ToolCallDelta

Kind = Literal["reasoning", "message", "call"]
Event = ResponseEvent | ItemEvent | PartEvent | DeltaEvent | DoneEvent

_PREFIXES: Final[dict[Kind, str]] = {"reasoning": "rs_", "message": "msg_", "call": "fc_"}
_DELTAS: Final[dict[Kind, DeltaEventType]] = {
    "reasoning": "response.reasoning_text.delta",
    "message": "response.output_text.delta",
    "call": "response.function_call_arguments.delta",
}
_DONES: Final[dict[Kind, DoneEventType]] = {
    "reasoning": "response.reasoning_text.done",
    "message": "response.output_text.done",
    "call": "response.function_call_arguments.done",
}


class _OpenItem:
    """The item that still grows. Items follow each other, so there is one at most."""

    def __init__(self, kind: Kind, index: int, call: ToolCallDelta | None) -> None:
        self.kind: Kind = kind
        self.index = index
        self.id = new_id(_PREFIXES[kind])
        self.pieces: list[str] = []
        self.logprobs: list[ChatTokenLogprob] = []
        self._call = call

    def item(self, status: ItemStatus) -> Item:
        """The item as far as it is; one that has just begun is empty."""
        text, empty = "".join(self.pieces), status == "in_progress"
        match self.kind:
            case "reasoning":
                parts = [] if empty else [ReasoningText(text=text)]
                return ReasoningItem(id=self.id, status=status, content=parts)
            case "message":
                texts = [] if empty else [OutputText(text=text, logprobs=self.logprobs)]
                return OutputMessage(id=self.id, status=status, content=texts)
            case "call":
                assert self._call is not None
                return FunctionCall(
                    id=self.id,
                    call_id=self._call.id,
                    name=self._call.name,
                    arguments=text,
                    status=status,
                )

    def part(self) -> OutputText | ReasoningText:
        """The text inside the item."""
        text = "".join(self.pieces)
        if self.kind == "reasoning":
            return ReasoningText(text=text)
        return OutputText(text=text, logprobs=self.logprobs)


class ResponseBuilder:
    """Takes chunks. `events` has what a stream would tell since it was last cleared."""

    def __init__(self, begun: Response) -> None:
        self.events: list[Event] = []
        self._begun = begun
        self._items: list[Item] = []
        self._open: _OpenItem | None = None
        self._usage = UsageCount()
        self._finish_reason: FinishReason = "stop"
        self._sequence_number = 0
        self._tell_response("response.created", begun)
        self._tell_response("response.in_progress", begun)

    def add(self, chunk: GenerateChunk) -> None:
        """Takes what is new."""
        self._usage.add(chunk)
        logprobs = [] if chunk.logprobs is None else chat_logprobs(chunk.logprobs).content
        for kind, part in ordered_parts(chunk):
            if isinstance(part, ToolCallDelta):
                if part.id:
                    self._enter("call", part)
                self._grow(part.arguments, [])
            else:
                self._enter("reasoning" if kind == "reasoning" else "message")
                self._grow(part, logprobs if kind == "text" else [])
        if chunk.finish_reason is not None:
            self._finish_reason = chunk.finish_reason

    def finish(self) -> Response:
        """The whole response."""
        complete = self._finish_reason != "length"
        if not self._items and self._open is None:
            self._enter("message")
        self._close("completed" if complete else "incomplete")
        response = structs.replace(
            self._begun,
            status="completed" if complete else "incomplete",
            incomplete_details=None if complete else IncompleteDetails(),
            output=self._items,
            usage=self._usage.of_response(),
        )
        self._tell_response("response.completed" if complete else "response.incomplete", response)
        return response

    def fail(self, error: HttpError) -> None:
        """The response will not be finished."""
        self._close("incomplete")
        failure = ResponseError(code=error.code or "server_error", message=str(error))
        failed = structs.replace(self._begun, status="failed", error=failure, output=self._items)
        self._tell_response("response.failed", failed)

    def _enter(self, kind: Kind, call: ToolCallDelta | None = None) -> None:
        if self._open is not None and self._open.kind == kind and call is None:
            return
        self._close("completed")
        self._open = item = _OpenItem(kind, len(self._items), call)
        self.events.append(
            ItemEvent(
                type="response.output_item.added",
                sequence_number=self._next_number(),
                output_index=item.index,
                item=item.item("in_progress"),
            )
        )
        if kind != "call":
            self._tell_part("response.content_part.added", item)

    def _grow(self, text: str, logprobs: list[ChatTokenLogprob]) -> None:
        item = self._open
        if item is None or not text:
            return
        item.pieces.append(text)
        item.logprobs += logprobs
        self.events.append(
            DeltaEvent(
                type=_DELTAS[item.kind],
                sequence_number=self._next_number(),
                item_id=item.id,
                output_index=item.index,
                content_index=UNSET if item.kind == "call" else 0,
                delta=text,
                logprobs=logprobs if item.kind == "message" else UNSET,
            )
        )

    def _close(self, status: ItemStatus) -> None:
        item, self._open = self._open, None
        if item is None:
            return
        self._tell_done(item)
        if item.kind != "call":
            self._tell_part("response.content_part.done", item)
        self._items.append(item.item(status))
        self.events.append(
            ItemEvent(
                type="response.output_item.done",
                sequence_number=self._next_number(),
                output_index=item.index,
                item=self._items[-1],
            )
        )

    def _tell_done(self, item: _OpenItem) -> None:
        whole = item.item("completed")
        text = "".join(item.pieces)
        self.events.append(
            DoneEvent(
                type=_DONES[item.kind],
                sequence_number=self._next_number(),
                item_id=item.id,
                output_index=item.index,
                content_index=UNSET if item.kind == "call" else 0,
                text=UNSET if item.kind == "call" else text,
                logprobs=item.logprobs if item.kind == "message" else UNSET,
                name=whole.name if isinstance(whole, FunctionCall) else UNSET,
                arguments=text if item.kind == "call" else UNSET,
            )
        )

    def _tell_part(self, kind: PartEventType, item: _OpenItem) -> None:
        self.events.append(
            PartEvent(
                type=kind,
                sequence_number=self._next_number(),
                item_id=item.id,
                output_index=item.index,
                part=item.part(),
            )
        )

    def _tell_response(self, kind: ResponseEventType, response: Response) -> None:
        self.events.append(
            ResponseEvent(type=kind, sequence_number=self._next_number(), response=response)
        )

    def _next_number(self) -> int:
        number = self._sequence_number
        self._sequence_number += 1
        return number
