"""Calls written as JSON objects: {"name": ..., "arguments": {...}} and what models make of it."""

from typing import Final, Literal

from pillion.actors.detokenizer.parsed_output import ParsedOutput
from pillion.actors.detokenizer.tool_calls.json_values import (
    WHITESPACE,
    ArgumentsValue,
    JsonSpan,
    decoded,
)

Status = Literal["open", "done", "broken"]

_NAME_KEYS: Final = ("name", "function")
_ARGUMENT_KEYS: Final = ("arguments", "parameters")
_KNOWN_KEYS: Final = (*_NAME_KEYS, *_ARGUMENT_KEYS, "id", "type", "index")


class JsonCall:
    """Reads one object. The call is known as soon as its name is; arguments then pass as they come.

    With `names`, an object that names no such function or has foreign keys is no call.
    """

    def __init__(self, output: ParsedOutput, names: frozenset[str] | None) -> None:
        self.status: Status = "open"
        self.started = False  # the output has the call
        self._output = output
        self._names = names
        self._state: Literal["object", "key", "colon", "value", "next"] = "object"
        self._depth = 0  # objects that are open: the call, and one below "function"
        self._key = ""
        self._span: JsonSpan | None = None
        self._kept: list[str] = []
        self._value: ArgumentsValue | None = None
        self._early_arguments = ""  # that came before the name

    def feed(self, text: str) -> str:
        """Takes text until the object ends or cannot be one. Returns what it did not take."""
        while text and self.status == "open":
            if self._span is not None:
                text = self._scan(text)
            elif self._value is not None:
                text = self._pass(text)
            elif text[0] in WHITESPACE:
                text = text[1:]
            else:
                text = self._step(text)
        return text

    def _step(self, text: str) -> str:
        """One structural character, or the beginning of a key or value."""
        character = text[0]
        match self._state:
            case "object" if character == "{":
                self._depth, self._state = self._depth + 1, "key"
            case "key" if character == '"':
                self._span, self._kept = JsonSpan(), []
                return text
            case "colon" if character == ":":
                self._state = "value"
            case "value":
                return self._begin_value(text)
            case "next" if character == ",":
                self._state = "key"
            case "key" | "next" if character == "}":
                self._close()
            case _:
                self._break()
                return text
        return text[1:]

    def _begin_value(self, text: str) -> str:
        if self._key == "function" and text[0] == "{":
            self._state = "object"
        elif self._key in _ARGUMENT_KEYS and self.started:
            self._value = ArgumentsValue(self._output)
        else:
            self._span, self._kept = JsonSpan(), []
        return text

    def _scan(self, text: str) -> str:
        """More of a key, or of a value that has to be complete."""
        assert self._span is not None
        end = self._span.end(text)
        self._kept.append(text if end is None else text[:end])
        if end is None:
            return ""
        self._span = None
        value = "".join(self._kept)
        if self._state == "key":
            key = decoded(value)
            self._key = key if isinstance(key, str) else ""
            self._state = "colon"
            if self._names is not None and not self.started and self._key not in _KNOWN_KEYS:
                self._break()
        else:
            self._state = "next"
            self._take(value)
        return text[end:]

    def _pass(self, text: str) -> str:
        """More of the arguments."""
        assert self._value is not None
        rest = self._value.feed(text)
        if rest is None:
            return ""
        self._value, self._state = None, "next"
        return rest

    def _take(self, value: str) -> None:
        if self._key in _ARGUMENT_KEYS:
            self._early_arguments = value
        elif self._key in _NAME_KEYS and not self.started:
            name = decoded(value)
            if (
                not isinstance(name, str)
                or not name
                or not (self._names is None or name in self._names)
            ):
                self._break()
                return
            self.started = True
            self._output.start_call(name)
            if self._early_arguments:
                ArgumentsValue(self._output).feed(self._early_arguments + " ")

    def _close(self) -> None:
        self._depth -= 1
        self._state = "next"
        if self._depth:
            return
        if self.started:
            self.status = "done"
            self._output.end_call()
        else:
            self.status = "broken"

    def _break(self) -> None:
        self.status = "broken"
        if self.started:
            self._output.end_call()


class JsonCalls:
    """Reads one object after another, separated by commas or semicolons, also in a list.

    What it cannot take as a call goes to the content as it was written.
    """

    def __init__(self, output: ParsedOutput, names: frozenset[str] | None, lead: str = "") -> None:
        """`lead`: the text in front, which is content if no call follows."""
        self.over = False
        self._output = output
        self._names = names
        self._call: JsonCall | None = None
        self._in_list = False
        self._num_calls = 0
        self._raw = [lead]  # since the last call

    def feed(self, text: str) -> str:
        """Takes calls. Returns the text that follows them, once they are over."""
        while text and not self.over:
            if self._call is not None:
                text = self._feed_call(self._call, text)
            else:
                text = self._between(text)
        return text

    def finish(self) -> None:
        """No text follows."""
        if not self.over:
            self._end(closed=False)

    def _feed_call(self, call: JsonCall, text: str) -> str:
        rest = call.feed(text)
        if not call.started:
            self._raw.append(text[: len(text) - len(rest)])
        else:
            self._raw.clear()
        if call.status == "done":
            self._num_calls += 1
            self._call = None
        elif call.status == "broken":
            self._end(closed=False)
        return rest

    def _between(self, text: str) -> str:
        character = text[0]
        if character == "{":
            self._call = JsonCall(self._output, self._names)
            return text
        if character == "]" and self._in_list:
            self._raw.append(character)
            self._end(closed=self._num_calls > 0)
        elif character == "[" and not self._in_list and not self._num_calls:
            self._in_list = True
            self._raw.append(character)
        elif character in WHITESPACE or (character in ",;" and self._num_calls):
            self._raw.append(character)
        else:
            self._end(closed=False)
            return text
        return text[1:]

    def _end(self, *, closed: bool) -> None:
        self.over = True
        if not closed:
            self._output.content("".join(self._raw))
