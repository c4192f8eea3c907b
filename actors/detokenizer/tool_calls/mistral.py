"""Mistral's calls: a list of JSON objects behind a marker, or in newer models a name and its arguments."""

from typing import Final

from pillion.actors.detokenizer.markers import find_marker
from pillion.actors.detokenizer.parsed_output import ParsedOutput
from pillion.actors.detokenizer.tool_calls.call_parser import CallParser
from pillion.actors.detokenizer.tool_calls.json_calls import JsonCalls

CALLS: Final = "[TOOL_CALLS]"
CALL_ID: Final = "[CALL_ID]"
ARGUMENTS: Final = "[ARGS]"
MARKERS: Final = (CALLS, CALL_ID, ARGUMENTS)


class MistralParser(CallParser):
    """`[TOOL_CALLS][{"name": ..., "arguments": ...}, ...]` or `[TOOL_CALLS]name[ARGS]{...}`, repeated."""

    def __init__(self, output: ParsedOutput) -> None:
        super().__init__(output, self._content)
        self._calls = JsonCalls(output, None)

    def finish(self) -> None:
        """No text follows."""
        if self._state == self._in_calls:
            self._calls.finish()
        elif self._state in (self._begin, self._header):
            self._output.content(CALLS)
        super().finish()

    def _content(self) -> bool:
        text, marker = self._before(CALLS)
        self._output.content(text)
        if marker is None:
            return False
        self._state = self._begin
        return True

    def _begin(self) -> bool:
        rest = self._buffer.lstrip()
        if not rest:
            return False
        self._state = self._header
        if rest[0] in "{[":
            self._calls = JsonCalls(self._output, None, CALLS)
            self._buffer = rest
            self._state = self._in_calls
        return True

    def _in_calls(self) -> bool:
        self._buffer = self._calls.feed(self._buffer)
        if self._calls.over:
            self._state = self._content
        return self._calls.over

    def _header(self) -> bool:
        """The name, maybe an id, up to the arguments."""
        at, marker = find_marker(self._buffer, (ARGUMENTS, CALLS, "{"))
        if marker is None:
            return False
        name = self._buffer[:at].split(CALL_ID)[0].strip()
        if not name or marker == CALLS or any(each.isspace() for each in name):
            self._output.content(CALLS)
            self._state = self._content
            return True
        self._output.start_call(name)
        self._buffer = self._buffer[at:].removeprefix(ARGUMENTS)
        self._begin_arguments(then=self._content)
        return True
