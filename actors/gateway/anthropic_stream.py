"""The events of a streamed answer in Anthropic's shape."""

from typing import Final, Literal

from pillion.actors.gateway.answers import PromptChunk
from pillion.actors.gateway.anthropic_replies import (
    AnthropicAnswer,
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    Ending,
    Event,
    InputDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    SignatureDelta,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from pillion.actors.gateway.events import AnswerShape, named_event
from pillion.actors.gateway.http_errors import HttpError
from pillion.actors.gateway.sample import ordered_parts
from pillion.actors.gateway.usage import UsageCount
from pillion.messages.ids import FinishReason
from pillion.messages.text import GenerateChunk, ToolCallDelta

_STOP_REASONS: Final[dict[FinishReason, StopReason]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


def stop_of(finish_reason: FinishReason, stop: int | str | None) -> tuple[StopReason, str | None]:
    """Why an answer ended, and the stop sequence that did it."""
    if finish_reason == "stop" and isinstance(stop, str):
        return "stop_sequence", stop
    return _STOP_REASONS.get(finish_reason, "end_turn"), None


class MessageStream(AnswerShape):
    """One block after the other: thinking, text, calls."""

    def __init__(self, model: str, message_id: str) -> None:
        self._model = model
        self._id = message_id
        self._usage = UsageCount()
        self._started = False
        self._open: Literal["thinking", "text", "tool_use"] | None = None
        self._index = -1  # of the last block
        self._ending = Ending(stop_reason=None, stop_sequence=None)
        self._new: list[Event] = []

    def events(self, chunks: list[PromptChunk]) -> bytes:
        """The events of what is new."""
        for _, chunk in chunks:
            self._usage.add(chunk)
            self._start()
            self._take(chunk)
        return self._encoded()

    def end(self) -> bytes:
        """What follows the last chunk."""
        self._start()
        self._close()
        self._new.append(MessageDelta(delta=self._ending, usage=self._usage.anthropic()))
        self._new.append(MessageStop())
        return self._encoded()

    def error(self, error: HttpError) -> bytes:
        """An event of its own."""
        return named_event("error", error.as_dict("anthropic"))

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        answer = AnthropicAnswer(
            id=self._id,
            model=self._model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=self._usage.anthropic(),
        )
        self._new.append(MessageStart(message=answer))

    def _take(self, chunk: GenerateChunk) -> None:
        for kind, part in ordered_parts(chunk):
            if isinstance(part, ToolCallDelta):
                self._take_call(part)
            elif kind == "reasoning":
                self._enter("thinking", ThinkingBlock(thinking=""))
                self._tell(ThinkingDelta(thinking=part))
            else:
                self._enter("text", TextBlock(text=""))
                self._tell(TextDelta(text=part))
        if chunk.finish_reason is not None:
            reason, sequence = stop_of(chunk.finish_reason, chunk.stop_reason)
            self._ending = Ending(stop_reason=reason, stop_sequence=sequence)

    def _take_call(self, call: ToolCallDelta) -> None:
        if call.id:
            self._close()
            self._enter("tool_use", ToolUseBlock(id=call.id, name=call.name, input={}))
        if call.arguments:
            self._tell(InputDelta(partial_json=call.arguments))

    def _enter(self, kind: Literal["thinking", "text", "tool_use"], block: Block) -> None:
        if self._open == kind:
            return
        self._close()
        self._open = kind
        self._index += 1
        self._new.append(BlockStart(index=self._index, content_block=block))

    def _close(self) -> None:
        if self._open is None:
            return
        if self._open == "thinking":
            self._tell(SignatureDelta())
        self._new.append(BlockStop(index=self._index))
        self._open = None

    def _tell(self, delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta) -> None:
        self._new.append(BlockDelta(index=self._index, delta=delta))

    def _encoded(self) -> bytes:
        new, self._new = self._new, []
        return b"".join([named_event(str(type(each).__struct_config__.tag), each) for each in new])
