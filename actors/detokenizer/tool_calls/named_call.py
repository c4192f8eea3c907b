"""The answer is the arguments of one function that the client has named."""

from pillion.actors.detokenizer.parsed_output import ParsedOutput
from pillion.actors.detokenizer.tool_calls.call_parser import CallParser


class NamedCallParser(CallParser):
    """One JSON value, which structured output has made the whole answer."""

    def __init__(self, output: ParsedOutput, name: str) -> None:
        super().__init__(output, self._begin)
        self._name = name

    def _begin(self) -> bool:
        self._buffer = self._buffer.lstrip()
        if not self._buffer:
            return False
        self._output.start_call(self._name)
        self._begin_arguments(then=self._pass_content)
        return True
