"""Calls as JSON objects between markers, as Hermes and Qwen models write them."""

from pillion.actors.detokenizer.buffered_parser import BufferedParser
from pillion.actors.detokenizer.parsed_output import ParsedOutput
from pillion.actors.detokenizer.tool_calls.json_calls import JsonCall


class MarkedJsonParser(BufferedParser):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number, with text around them.

    What is between markers and no call stays in the content, markers included.
    """

    def __init__(self, output: ParsedOutput, start: str, end: str) -> None:
        super().__init__(output, self._content)
        self._start = start
        self._end = end
        self._call = JsonCall(output, None)
        self._raw = ""  # of a call that is not known to be one

    def finish(self) -> None:
        """No text follows."""
        if self._state == self._in_call and not self._call.started:
            self._output.content(self._raw)
        elif self._state != self._content:
            self._buffer = ""
        super().finish()

    def _content(self) -> bool:
        text, marker = self._before(self._start)
        self._output.content(text)
        if marker is None:
            return False
        self._call, self._raw = JsonCall(self._output, None), marker
        self._state = self._in_call
        return True

    def _in_call(self) -> bool:
        rest = self._call.feed(self._buffer)
        self._raw += self._buffer[: len(self._buffer) - len(rest)]
        self._buffer = rest
        if self._call.status == "open":
            return False
        if self._call.started:
            self._state = self._tail
        else:
            self._output.content(self._raw)
            self._state = self._content
        return True

    def _tail(self) -> bool:
        """Behind a call; a model that forgets the end marker may begin the next one."""
        _, marker = self._before(self._end, self._start)
        if marker is None:
            return False
        if marker == self._start:
            self._call, self._raw = JsonCall(self._output, None), marker
            self._state = self._in_call
        else:
            self._state = self._content
        return True
