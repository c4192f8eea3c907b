"""What the parsers of a sample make of its text: content, reasoning and tool calls."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from pillion.messages.text import ToolCallDelta

NO_ARGUMENTS: Final = "{}"

_Kind = Literal["", "content", "reasoning", "call"]


class OutputParser(Protocol):
    """Reads the text of one sample in whatever pieces it comes, and fills a ParsedOutput.

    The sum of what it finds does not depend on how the text was cut.
    """

    @property
    def in_reasoning(self) -> bool:
        """Whether what comes next may still be reasoning."""

    def push(self, text: str) -> None:
        """More text."""

    def finish(self) -> None:
        """No text follows: what was held back goes where it belongs."""


@dataclass(slots=True)
class OutputParts:
    """What is new of an answer."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)


class ParsedOutput:
    """Collects what parsers find until the client gets it.

    Whitespace beside reasoning and calls belongs to the format and is dropped; that of an answer without
    either stays as it is.
    """

    def __init__(self, call_id: Callable[[int], str], max_calls: int | None = None) -> None:
        """`call_id` names calls by their index. What follows the last of `max_calls` calls is dropped."""
        self.num_calls = 0
        self.call_open = False  # a call has begun and its arguments are not complete
        self._call_id = call_id
        self._max_calls = max_calls
        self._kind: _Kind = ""
        self._held = ""  # whitespace that only counts if text of the same kind follows
        self._at_start = False  # whether whitespace would be the first of its kind, behind another
        self._pieces: dict[_Kind, list[str]] = {"content": [], "reasoning": []}
        self._calls: list[ToolCallDelta] = []
        self._arguments: list[str] = []  # of the last call in `_calls`
        self._has_arguments = False

    @property
    def has_news(self) -> bool:
        """Whether there is something that the client does not have."""
        return bool(self._pieces["content"] or self._pieces["reasoning"] or self._calls)

    @property
    def calls_complete(self) -> bool:
        """Whether calls have been made, and the last one to its end."""
        return self.num_calls > 0 and not self.call_open

    @property
    def full(self) -> bool:
        """Whether all calls that are wanted have been made, so that nothing more can count."""
        return self.num_calls == self._max_calls and not self.call_open

    def content(self, text: str) -> None:
        """Text of the answer."""
        self._text("content", text)

    def reasoning(self, text: str) -> None:
        """Text of the reasoning."""
        self._text("reasoning", text)

    def start_call(self, name: str) -> None:
        """A call of this function begins."""
        if self.full:
            return
        self._join_arguments()
        self._kind, self._held = "call", ""
        self._calls.append(
            ToolCallDelta(index=self.num_calls, id=self._call_id(self.num_calls), name=name)
        )
        self.num_calls += 1
        self.call_open, self._has_arguments = True, False

    def arguments(self, text: str) -> None:
        """A part of the open call's arguments, as JSON."""
        if not self.call_open or not text:
            return
        if not self._calls:
            self._calls.append(ToolCallDelta(index=self.num_calls - 1))
        self._has_arguments = True
        self._arguments.append(text)

    def end_call(self) -> None:
        """The open call is complete."""
        if self.call_open and not self._has_arguments:
            self.arguments(NO_ARGUMENTS)
        self.call_open = False

    def finish(self) -> None:
        """Nothing follows."""
        if self._kind == "content" and not self._at_start and self._held:
            self._pieces["content"].append(self._held)
        self._held = ""

    def take(self) -> OutputParts:
        """What the client does not have yet."""
        self._join_arguments()
        content, reasoning = self._pieces["content"], self._pieces["reasoning"]
        parts = OutputParts("".join(content), "".join(reasoning), self._calls)
        content.clear()
        reasoning.clear()
        if self._calls:
            self._calls = []
        return parts

    def _text(self, kind: _Kind, text: str) -> None:
        if not text or self.full:
            return
        if self._kind != kind:
            self._at_start = self._kind != "" or kind == "reasoning"
            self._kind, self._held = kind, ""
        text = self._held + text
        if self._at_start:
            text = text.lstrip()
        shown = text.rstrip()
        self._held = text[len(shown) :]
        if shown:
            self._at_start = False
            self._pieces[kind].append(shown)

    def _join_arguments(self) -> None:
        if self._arguments:
            last = self._calls[-1]
            self._calls[-1] = ToolCallDelta(
                index=last.index, id=last.id, name=last.name, arguments="".join(self._arguments)
            )
            self._arguments = []
