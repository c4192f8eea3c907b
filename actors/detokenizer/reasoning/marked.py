"""Reasoning between a start and an end marker, in front of the answer."""

from pillion.actors.detokenizer.buffered_parser import BufferedParser
from pillion.actors.detokenizer.parsed_output import OutputParser, ParsedOutput


class ContentParser:
    """An OutputParser for which all text is content."""

    def __init__(self, output: ParsedOutput) -> None:
        self._output = output

    @property
    def in_reasoning(self) -> bool:
        """Never."""
        return False

    def push(self, text: str) -> None:
        """More text."""
        self._output.content(text)

    def finish(self) -> None:
        """No text follows."""


class MarkedReasoning(BufferedParser):
    """Takes the reasoning off and hands what follows it to the next parser.

    Only a start marker at the very beginning counts. `is_open`: the prompt has given it already. Reasoning
    that is cut off has no end, and no content follows it.
    """

    def __init__(
        self, output: ParsedOutput, start: str, end: str, then: OutputParser, *, is_open: bool
    ) -> None:
        super().__init__(output, self._open if is_open else self._begin)
        self._start = start
        self._end = end
        self._then = then

    @property
    def in_reasoning(self) -> bool:
        """Also at the beginning, where no text has said yet whether there is any."""
        return self._state != self._answer

    def finish(self) -> None:
        """No text follows."""
        if self._state == self._reason or self._state == self._open:
            self._output.reasoning(self._buffer)
        else:
            self._then.push(self._buffer)
        self._buffer = ""
        self._then.finish()

    def _begin(self) -> bool:
        bare = self._buffer.lstrip()
        if self._start.startswith(bare) and bare != self._start:
            return False
        if bare.startswith(self._start):
            self._buffer = bare[len(self._start) :]
            self._state = self._reason
        else:
            self._state = self._answer
        return True

    def _open(self) -> bool:
        """Some models repeat the start marker that the prompt has given."""
        bare = self._buffer.lstrip()
        if self._start.startswith(bare) and bare != self._start:
            return False
        self._buffer = bare.removeprefix(self._start)
        self._state = self._reason
        return True

    def _reason(self) -> bool:
        text, marker = self._before(self._end)
        self._output.reasoning(text)
        if marker is None:
            return False
        self._state = self._answer
        return True

    def _answer(self) -> bool:
        text, self._buffer = self._buffer, ""
        if text:
            self._then.push(text)
        return False
