"""Calls in tags with their arguments as plain text, as Qwen3-Coder models write them."""

import json
from collections.abc import Sequence
from typing import Any, Final

from pillion.actors.detokenizer.buffered_parser import BufferedParser
from pillion.actors.detokenizer.parsed_output import NO_ARGUMENTS, ParsedOutput
from pillion.actors.detokenizer.tool_calls.json_values import WHITESPACE
from pillion.actors.detokenizer.tool_calls.parameter_values import (
    Types,
    is_text,
    parameter_types,
    value_json,
)

CALL: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
FUNCTION: Final = "<function="
FUNCTION_END: Final = "</function>"
PARAMETER: Final = "<parameter="
PARAMETER_END: Final = "</parameter>"

_TAG_END: Final = ">"
_NEW_LINE: Final = "\n"
_NOT_IN_NAMES: Final = frozenset("<" + WHITESPACE)


class XmlCallsParser(BufferedParser):
    """`<tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>`, any number.

    One line break on either side of a value belongs to the tags. Text parameters are handed on as they come, others
    when they are complete, as the JSON that the schema asks for. Tags that are left out at the end of something are
    done without, and so is `<tool_call>` in front of a function of the request.
    """

    def __init__(self, output: ParsedOutput, functions: Sequence[dict[str, Any]]) -> None:
        super().__init__(output, self._content)
        self._functions = {each["name"]: each for each in functions}
        self._raw = ""  # of a call that is not known to be one
        self._types: dict[str, Types] = {}
        self._value_types: Types = frozenset()
        self._num_parameters = 0
        self._kept = ""  # of a value: what has to be complete, or a line break that may be its last
        self._at_start = False

    def finish(self) -> None:
        """No text follows."""
        if self._state in (self._open, self._name):
            self._output.content(self._raw)
        elif self._state != self._content:
            self._buffer = ""
        super().finish()

    def _content(self) -> bool:
        text, marker = self._before(CALL, FUNCTION)
        self._output.content(text)
        return self._begin(marker)

    def _begin(self, marker: str | None) -> bool:
        """Behind a marker with which a call may begin."""
        if marker is None:
            return False
        self._raw = marker
        self._state = self._open if marker == CALL else self._name
        return True

    def _open(self) -> bool:
        rest = self._buffer.lstrip(WHITESPACE)
        if FUNCTION.startswith(rest):
            if rest != FUNCTION:
                return False
        elif not rest.startswith(FUNCTION):
            return self._give_up()
        self._raw += self._buffer[: len(self._buffer) - len(rest)] + FUNCTION
        self._buffer = rest.removeprefix(FUNCTION)
        self._state = self._name
        return True

    def _name(self) -> bool:
        name, end, rest = self._buffer.partition(_TAG_END)
        known = self._raw != FUNCTION or name in self._functions
        if _NOT_IN_NAMES.intersection(name) or (end and not (name and known)):
            return self._give_up()
        if not end:
            return False
        self._output.start_call(name)
        self._types = parameter_types(self._functions.get(name, {}))
        self._num_parameters = 0
        self._buffer = rest
        self._state = self._between
        return True

    def _give_up(self) -> bool:
        self._output.content(self._raw)
        self._state = self._content
        return True

    def _between(self) -> bool:
        """Inside a function, outside its parameters."""
        _, marker = self._before(PARAMETER, FUNCTION_END, CALL_END, CALL, FUNCTION)
        if marker == PARAMETER:
            self._state = self._key
            return True
        if marker is None:
            return False
        self._output.arguments("}" if self._num_parameters else NO_ARGUMENTS)
        self._output.end_call()
        return self._behind(marker)

    def _behind(self, marker: str) -> bool:
        """Where one goes on behind a marker that ends a function, or is found behind one."""
        if marker == FUNCTION_END:
            self._state = self._tail
        elif marker == CALL_END:
            self._state = self._content
        else:
            self._begin(marker)
        return True

    def _tail(self) -> bool:
        """Behind a function; what a model writes until the end of the call belongs to nothing."""
        if self._raw == FUNCTION:
            self._state = self._content
            return True
        _, marker = self._before(CALL_END, CALL, FUNCTION)
        if marker == FUNCTION:
            self._raw, self._state = CALL, self._name
            return True
        return marker is not None and self._behind(marker)

    def _key(self) -> bool:
        key, end, rest = self._buffer.partition(_TAG_END)
        if not end:
            return False
        self._buffer = rest
        self._value_types = self._types.get(key, frozenset())
        comma = ", " if self._num_parameters else "{"
        quote = '"' if is_text(self._value_types) else ""
        self._output.arguments(f"{comma}{_encoded(key)}: {quote}")
        self._num_parameters += 1
        self._kept, self._at_start = "", True
        self._state = self._value
        return True

    def _value(self) -> bool:
        text, marker = self._before(PARAMETER_END, PARAMETER, FUNCTION_END)
        if self._at_start and text:
            text, self._at_start = text.removeprefix(_NEW_LINE), False
        text = self._kept + text
        if is_text(self._value_types):
            whole = text.removesuffix(_NEW_LINE)
            self._output.arguments(_encoded(whole)[1:-1] + ('"' if marker else ""))
            self._kept = text[len(whole) :]
        else:
            self._kept = text
            if marker is not None:
                whole = text.removesuffix(_NEW_LINE)
                self._output.arguments(value_json(whole, self._value_types))
        if marker is None:
            return False
        self._state = self._between
        if marker != PARAMETER_END:
            self._buffer = marker + self._buffer
        return True


def _encoded(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
