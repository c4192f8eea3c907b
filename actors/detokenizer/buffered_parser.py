"""A parser that keeps the text that it has not understood yet."""

from collections.abc import Callable

from pillion.actors.detokenizer.markers import find_marker
from pillion.actors.detokenizer.parsed_output import ParsedOutput


class BufferedParser:
    """An OutputParser as a state machine: `_state` takes from `_buffer`, and tells whether it got on."""

    def __init__(self, output: ParsedOutput, state: Callable[[], bool]) -> None:
        self._output = output
        self._buffer = ""
        self._state = state

    @property
    def in_reasoning(self) -> bool:
        """Whether what comes next may still be reasoning."""
        return False

    def push(self, text: str) -> None:
        """More text."""
        self._buffer += text
        while self._state():
            pass

    def finish(self) -> None:
        """No text follows: what is left is content."""
        self._output.content(self._buffer)
        self._buffer = ""

    def _before(self, *markers: str) -> tuple[str, str | None]:
        """Takes the text up to the first marker, and the marker; without one, what belongs to none."""
        at, marker = find_marker(self._buffer, markers)
        text, self._buffer = self._buffer[:at], self._buffer[at + len(marker or "") :]
        return text, marker

    def _pass_content(self) -> bool:
        """All the rest is content."""
        self._output.content(self._buffer)
        self._buffer = ""
        return False
