"""One answer of the model as far as it has come."""

from collections.abc import Iterator
from typing import Literal

from pillion.actors.gateway.logprob_shapes import chat_logprobs
from pillion.actors.gateway.openai_replies import ChatTokenLogprob
from pillion.messages.codec import unpack_ids
from pillion.messages.ids import FinishReason
from pillion.messages.text import GenerateChunk, ToolCallDelta
from pillion.runtime.outputs import ToolCall

PartKind = Literal["reasoning", "text", "call"]


def ordered_parts(chunk: GenerateChunk) -> Iterator[tuple[PartKind, str | ToolCallDelta]]:
    """What a chunk brings, in the order in which the model said it."""
    if chunk.reasoning:
        yield "reasoning", chunk.reasoning
    calls = list(chunk.tool_calls)
    # What goes on of a call comes before text that follows it.
    if calls and not calls[0].id:
        yield "call", calls.pop(0)
    if chunk.text:
        yield "text", chunk.text
    for call in calls:
        yield "call", call


class Sample:
    """Joins the chunks of one sample."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[ChatTokenLogprob] = []
        self.tool_calls: list[ToolCall] = []
        self.finish_reason: FinishReason = "stop"
        self.stop_reason: int | str | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []

    @property
    def text(self) -> str:
        """The answer itself."""
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        """What the model said to itself."""
        return "".join(self._reasoning)

    def add(self, chunk: GenerateChunk) -> None:
        """Takes what is new."""
        self._text.append(chunk.text)
        self._reasoning.append(chunk.reasoning)
        self.token_ids += unpack_ids(chunk.token_ids)
        for call in chunk.tool_calls:
            if call.index == len(self.tool_calls):
                self.tool_calls.append(ToolCall(call.index, call.id, call.name))
            self.tool_calls[call.index].arguments += call.arguments
        if chunk.logprobs is not None:
            self.logprobs += chat_logprobs(chunk.logprobs).content
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
            self.stop_reason = chunk.stop_reason
