"""The extent of JSON values in a text that comes in pieces."""

import json
from typing import Any, Final

from pillion.actors.detokenizer.parsed_output import NO_ARGUMENTS, ParsedOutput

WHITESPACE: Final = " \t\r\n"


class JsonSpan:
    """Finds the end of one value. Brackets and strings are followed, nothing else is checked."""

    __slots__ = ("_depth", "_escaped", "_in_string", "_started")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._started = False

    def end(self, text: str, start: int = 0) -> int | None:
        """The place behind the value, in a text that continues the one before; None if it goes on."""
        for place in range(start, len(text)):
            character = text[place]
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
                    if not self._depth:
                        return place + 1
            elif character == '"':
                if self._started and not self._depth:
                    return place
                self._in_string = True
            elif character in "{[":
                if self._started and not self._depth:
                    return place
                self._depth += 1
            elif character in "}]":
                if not self._depth:
                    return place
                self._depth -= 1
                if not self._depth:
                    return place + 1
            elif not self._depth and character in ",:;<" + WHITESPACE:
                return place
            self._started = True
        return None


class ArgumentsValue:
    """One value on its way into the arguments of a call.

    An object goes through as the model writes it. Models that write a string with JSON in it get it
    unwrapped, and null becomes the empty object.
    """

    def __init__(self, output: ParsedOutput) -> None:
        self._output = output
        self._span = JsonSpan()
        self._kept: list[str] = []  # what has to be complete before it can go on
        self._begun = False
        self._passes = False

    def feed(self, text: str) -> str | None:
        """Takes the value's text, and whitespace before. Returns what follows, None if the value goes on."""
        if not self._begun:
            text = text.lstrip()
            if not text:
                return None
            self._begun, self._passes = True, text[0] in "{["
        end = self._span.end(text)
        part = text if end is None else text[:end]
        if self._passes:
            self._output.arguments(part)
        else:
            self._kept.append(part)
        if end is None:
            return None
        if not self._passes:
            self._output.arguments(unwrapped("".join(self._kept)))
        return text[end:]


def unwrapped(value: str) -> str:
    """The arguments that a scalar stands for: a string's own text, the empty object for null."""
    if value == "null":
        return NO_ARGUMENTS
    text = decoded(value)
    return text if isinstance(text, str) else value


def decoded(text: str) -> Any:
    """The value of a JSON text; None for what is no JSON."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
