"""What formats share that write a name and then the bare arguments."""

from collections.abc import Callable

from pillion.actors.detokenizer.buffered_parser import BufferedParser
from pillion.actors.detokenizer.parsed_output import ParsedOutput
from pillion.actors.detokenizer.tool_calls.json_values import ArgumentsValue


class CallParser(BufferedParser):
    """A BufferedParser with a state that passes the arguments of the open call on."""

    def __init__(self, output: ParsedOutput, state: Callable[[], bool]) -> None:
        super().__init__(output, state)
        self._value = ArgumentsValue(output)
        self._then = state

    def _begin_arguments(self, then: Callable[[], bool]) -> None:
        """The next state is `_arguments`, and `then` follows it."""
        self._value, self._then = ArgumentsValue(self._output), then
        self._state = self._arguments

    def _arguments(self) -> bool:
        rest = self._value.feed(self._buffer)
        self._buffer = rest or ""
        if rest is None:
            return False
        self._output.end_call()
        self._state = self._then
        return True
