"""DeepSeek's calls: markers around a kind, a name and the arguments."""

from typing import Final

from pillion.actors.detokenizer.markers import find_marker
from pillion.actors.detokenizer.parsed_output import ParsedOutput
from pillion.actors.detokenizer.tool_calls.call_parser import CallParser

CALLS_BEGIN: Final = "<｜tool▁calls▁begin｜>"
CALLS_END: Final = "<｜tool▁calls▁end｜>"
CALL_BEGIN: Final = "<｜tool▁call▁begin｜>"
CALL_END: Final = "<｜tool▁call▁end｜>"
SEPARATOR: Final = "<｜tool▁sep｜>"
MARKERS: Final = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)

_KIND: Final = "function"


class DeepSeekParser(CallParser):
    """V3 and R1 write `function`, a separator, the name and a fenced object; V3.1 the name and the object."""

    def __init__(self, output: ParsedOutput) -> None:
        super().__init__(output, self._content)
        self._raw = ""  # of a call that is not known to be one

    def finish(self) -> None:
        """No text follows."""
        if self._state == self._header:
            self._output.content(self._raw)
        elif self._state != self._content:
            self._buffer = ""
        super().finish()

    def _content(self) -> bool:
        text, marker = self._before(CALLS_BEGIN, CALL_BEGIN)
        self._output.content(text)
        if marker is None:
            return False
        self._state = self._between
        if marker == CALL_BEGIN:
            self._raw, self._state = marker, self._header
        return True

    def _between(self) -> bool:
        """Inside the calls, outside any of them."""
        _, marker = self._before(CALL_BEGIN, CALLS_END)
        if marker is None:
            return False
        self._state = self._content
        if marker == CALL_BEGIN:
            self._raw, self._state = marker, self._header
        return True

    def _header(self) -> bool:
        """Up to the arguments; nothing is taken before all of it is there."""
        at, marker = find_marker(self._buffer, (SEPARATOR, CALL_END, CALLS_END))
        if marker is None:
            return False
        name, rest = self._buffer[:at].strip(), self._buffer[at + len(marker) :]
        if marker == SEPARATOR and name == _KIND:
            at, marker = find_marker(rest, ("{", CALL_END, CALLS_END))
            if marker is None:
                return False
            name = rest[:at].split("```")[0].strip()
            rest = rest[at:]
            marker = SEPARATOR if marker == "{" else marker
        if marker != SEPARATOR or not name:
            self._output.content(self._raw)
            self._state = self._content
            return True
        self._output.start_call(name)
        self._buffer = rest
        self._begin_arguments(then=self._tail)
        return True

    def _tail(self) -> bool:
        """Behind the arguments: a fence's end and a marker."""
        _, marker = self._before(CALL_END, CALLS_END, CALL_BEGIN)
        if marker is None:
            return False
        self._state = self._content if marker == CALLS_END else self._between
        if marker == CALL_BEGIN:
            self._raw, self._state = marker, self._header
        return True
