"""Calls as JSON objects without markers, as Llama 3 models and structured output write them."""

from typing import Final

from pillion.actors.detokenizer.buffered_parser import BufferedParser
from pillion.actors.detokenizer.parsed_output import ParsedOutput
from pillion.actors.detokenizer.tool_calls.json_calls import JsonCalls

_FENCE: Final = "```"
_FENCES: Final = ("```json", _FENCE)


class BareJsonParser(BufferedParser):
    """Calls where the answer begins with an object or a list of them, or behind a marker.

    Only objects that name a function of the request are calls; all else is content. A fence of Markdown
    around the calls is not.
    """

    def __init__(self, output: ParsedOutput, names: frozenset[str], marker: str = "") -> None:
        super().__init__(output, self._begin)
        self._names = names
        self._marker = marker
        self._calls = JsonCalls(output, names)
        self._fenced = False

    def finish(self) -> None:
        """No text follows."""
        if self._state == self._in_calls:
            self._calls.finish()
        elif self._state == self._fence_end and _FENCE.startswith(self._buffer.strip()):
            self._buffer = ""
        super().finish()

    def _begin(self) -> bool:
        bare = self._buffer.lstrip()
        leads = [lead for lead in (self._marker, *_FENCES) if lead]
        if any(lead.startswith(bare) for lead in leads):
            return False
        lead = next((lead for lead in leads if bare.startswith(lead)), "")
        rest = bare[len(lead) :].lstrip()
        if not rest:
            return False
        if rest[0] in "{[":
            self._fenced = lead in _FENCES
            self._start_calls(self._buffer[: len(self._buffer) - len(rest)], rest)
        else:
            self._state = self._content
        return True

    def _start_calls(self, lead: str, rest: str) -> None:
        self._calls = JsonCalls(self._output, self._names, lead)
        self._buffer = rest
        self._state = self._in_calls

    def _in_calls(self) -> bool:
        self._buffer = self._calls.feed(self._buffer)
        if not self._calls.over:
            return False
        has_fence_end = self._fenced and self._output.num_calls > 0
        self._fenced = False
        self._state = self._fence_end if has_fence_end else self._content
        return True

    def _fence_end(self) -> bool:
        bare = self._buffer.lstrip()
        if len(bare) < len(_FENCE) and _FENCE.startswith(bare):
            return False
        self._buffer = bare.removeprefix(_FENCE)
        self._state = self._content
        return True

    def _content(self) -> bool:
        if not self._marker:
            return self._pass_content()
        text, marker = self._before(self._marker)
        self._output.content(text)
        if marker is None:
            return False
        self._start_calls(marker, self._buffer)
        return True
