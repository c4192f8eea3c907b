"""How the answer to one chat is read: by which parsers, and from which state."""

import hashlib
from dataclasses import dataclass
from typing import Final

from pillion.actors.detokenizer.answer_formats import ReasoningFormat, ToolFormat
from pillion.actors.detokenizer.parsed_output import OutputParser, ParsedOutput
from pillion.actors.detokenizer.reasoning.harmony import MARKERS as HARMONY_MARKERS
from pillion.actors.detokenizer.reasoning.harmony import HarmonyParser
from pillion.actors.detokenizer.reasoning.marked import ContentParser, MarkedReasoning
from pillion.actors.detokenizer.tool_calls.bare_json import BareJsonParser
from pillion.actors.detokenizer.tool_calls.named_call import NamedCallParser
from pillion.actors.detokenizer.tool_use import ToolUse

_LETTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CALL_PREFIX: Final = "call_"


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """What is known of an answer before it begins."""

    tool_format: ToolFormat
    reasoning_format: ReasoningFormat | None
    tools: ToolUse
    # Whether the prompt ends inside the reasoning (True) or behind it (False); None: it says nothing.
    reasoning_open: bool | None = None

    @property
    def markers(self) -> frozenset[str]:
        """Tokens that the parser must see, also where they are special."""
        markers: tuple[str, ...] = ()
        if self._is_harmony:
            markers = HARMONY_MARKERS
        elif self.reasoning_format is not None:
            markers = (self.reasoning_format.start, self.reasoning_format.end)
        return frozenset(
            markers + self.tool_format.markers if self.tools.choice == "auto" else markers
        )

    @property
    def reasoning_openings(self) -> tuple[str, ...]:
        """Markers with which the answer may begin its reasoning, where that is the model's choice."""
        reasoning = self.reasoning_format
        if reasoning is None or self._is_harmony or self.reasoning_open is not None:
            return ()
        return () if reasoning.opens_itself else (reasoning.start,)

    @property
    def call_openings(self) -> tuple[str, ...]:
        """Markers with which the answer may begin calls, where that is the model's choice."""
        return self.tool_format.markers[:1] if self.tools.choice == "auto" else ()

    def output(self, sequence_id: int, arrival_ns: int) -> ParsedOutput:
        """Where a sample's parser puts what it finds."""
        length = self.tool_format.id_length

        def call_id(index: int) -> str:
            return tool_call_id(f"{arrival_ns}/{sequence_id}/{index}", length)

        return ParsedOutput(call_id, None if self.tools.parallel else 1)

    def parser(self, output: ParsedOutput) -> OutputParser:
        """The parser of one sample."""
        if self._is_harmony:
            if self.tools.choice in ("none", "auto"):
                return HarmonyParser(output, calls=self.tools.choice == "auto")
            return self._calls(output)
        reasoning = self.reasoning_format
        if reasoning is None or self.reasoning_open is False:
            return self._calls(output)
        is_open = reasoning.opens_itself if self.reasoning_open is None else self.reasoning_open
        return MarkedReasoning(
            output, reasoning.start, reasoning.end, self._calls(output), is_open=is_open
        )

    @property
    def _is_harmony(self) -> bool:
        return self.reasoning_format is not None and self.reasoning_format.name == "gpt_oss"

    def _calls(self, output: ParsedOutput) -> OutputParser:
        match self.tools.choice:
            case "none":
                return ContentParser(output)
            case "auto":
                return self.tool_format.parser(output, self.tools)
            case "required":
                return BareJsonParser(output, self.tools.names)
            case "named":
                (name,) = self.tools.names
                return NamedCallParser(output, name)


def tool_call_id(seed: str, length: int) -> str:
    """A word that looks random, the same for the same seed: a call keeps it when its text is read again."""
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest())
    prefix = _CALL_PREFIX if length > 2 * len(_CALL_PREFIX) else ""
    letters = []
    for _ in range(length - len(prefix)):
        number, rest = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[rest])
    return prefix + "".join(letters)
