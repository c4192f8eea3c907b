"""gpt-oss's channels: reasoning, answer and calls as messages of their own."""

import re
from typing import Final

from pillion.actors.detokenizer.buffered_parser import BufferedParser
from pillion.actors.detokenizer.parsed_output import ParsedOutput

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
CONSTRAIN: Final = "<|constrain|>"
MESSAGE: Final = "<|message|>"
END: Final = "<|end|>"
CALL: Final = "<|call|>"
RETURN: Final = "<|return|>"
MARKERS: Final = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)

_RECIPIENT: Final = re.compile(r"\bto=functions\.([^\s<]+)")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")
_PARAGRAPH: Final = "\n\n"
_LEADS: Final = (CHANNEL, START, "to=")
_ENDS: Final = (END, CALL, RETURN, START)


class HarmonyParser(BufferedParser):
    """`<|channel|>analysis<|message|>...<|end|>` is reasoning, `final` the answer, `to=functions.f` a call.

    The prompt ends inside the header of the first message. Without `calls`, a call is content.
    """

    def __init__(self, output: ParsedOutput, *, calls: bool) -> None:
        super().__init__(output, self._begin)
        self._calls = calls
        self._has_content = False

    def finish(self) -> None:
        """No text follows. A header that was cut off says nothing."""
        if self._state in (self._begin, self._pass_content, self._answer):
            super().finish()
        elif self._state == self._reason:
            self._output.reasoning(self._buffer)
        elif self._state == self._arguments:
            self._output.arguments(self._buffer)
            # The end of a message is a token that also ends the answer, so it is not always seen.
            self._output.end_call()
        self._buffer = ""

    def _begin(self) -> bool:
        bare = self._buffer.lstrip()
        if any(lead.startswith(bare) for lead in _LEADS):
            return False
        self._state = self._header if bare.startswith(_LEADS) else self._pass_content
        return True

    def _header(self) -> bool:
        at = self._buffer.find(MESSAGE)
        if at < 0:
            return False
        header, self._buffer = self._buffer[:at], self._buffer[at + len(MESSAGE) :]
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        if recipient and self._calls:
            self._output.start_call(recipient[1])
            self._state = self._arguments
        elif channel and channel[1] == "analysis":
            self._output.reasoning(_PARAGRAPH)
            self._state = self._reason
        else:
            self._output.content(_PARAGRAPH if self._has_content else "")
            self._has_content = True
            self._state = self._answer
        return True

    def _reason(self) -> bool:
        text, marker = self._before(*_ENDS)
        self._output.reasoning(text)
        return self._end_message(marker)

    def _answer(self) -> bool:
        text, marker = self._before(*_ENDS)
        self._output.content(text)
        return self._end_message(marker)

    def _arguments(self) -> bool:
        text, marker = self._before(*_ENDS)
        self._output.arguments(text)
        if marker is not None:
            self._output.end_call()
        return self._end_message(marker)

    def _end_message(self, marker: str | None) -> bool:
        if marker is None:
            return False
        self._state = self._header
        return True
