"""Calls written as a Python list: `[get_weather(city="Paris"), get_time()]`, as Llama 3.2 and 4 do."""

import ast
import json
import re
from typing import Any, Final

from pillion.actors.detokenizer.buffered_parser import BufferedParser
from pillion.actors.detokenizer.parsed_output import ParsedOutput
from pillion.actors.detokenizer.tool_calls.json_values import WHITESPACE

START: Final = "<|python_start|>"
END: Final = "<|python_end|>"

_NAME: Final = re.compile(r"[A-Za-z_][\w.\-]*")
_JSON_WORDS: Final = {"true": True, "false": False, "null": None}


class PythonicParser(BufferedParser):
    """A list of calls with keyword arguments at the beginning of the answer, also between markers.

    Only functions of the request are calls, all else is content. A call comes whole: its arguments are
    known as JSON when its last parenthesis is there.
    """

    def __init__(self, output: ParsedOutput, names: frozenset[str]) -> None:
        super().__init__(output, self._begin)
        self._names = names
        self._raw = ""  # since the last call
        self._scan_from = 0
        self._closers: list[str] = []
        self._quote = ""
        self._escaped = False

    def finish(self) -> None:
        """No text follows."""
        if self._state in (self._between, self._in_call):
            self._output.content(self._raw)
        elif self._state == self._end and END.startswith(self._buffer.strip()):
            self._buffer = ""
        super().finish()

    def _begin(self) -> bool:
        bare = self._buffer.lstrip()
        if START.startswith(bare):
            return False
        rest = bare.removeprefix(START).lstrip()
        if not rest:
            return False
        if rest[0] != "[":
            self._state = self._pass_content
            return True
        self._raw = self._buffer[: len(self._buffer) - len(rest)] + "["
        self._buffer = rest[1:]
        self._state = self._between
        return True

    def _between(self) -> bool:
        """Inside the list, outside any call."""
        rest = self._buffer.lstrip(WHITESPACE + ",")
        self._raw += self._buffer[: len(self._buffer) - len(rest)]
        self._buffer = rest
        if not rest:
            return False
        if rest[0] == "]" and self._output.num_calls:
            self._buffer = rest[1:]
            self._state = self._end
        else:
            self._scan_from, self._closers = 0, []
            self._state = self._in_call
        return True

    def _in_call(self) -> bool:
        end = self._call_end()
        if end is None:
            return False
        call = parsed_call(self._buffer[:end]) if end else None
        if call is None or call[0] not in self._names:
            self._output.content(self._raw)
            self._state = self._pass_content
            return True
        self._output.start_call(call[0])
        self._output.arguments(call[1])
        self._output.end_call()
        self._raw, self._buffer = "", self._buffer[end:]
        self._state = self._between
        return True

    def _call_end(self) -> int | None:
        """The place behind the call's last parenthesis; None if it goes on, 0 for what is no call."""
        name = _NAME.match(self._buffer)
        if name is None:
            return 0
        if name.end() == len(self._buffer):
            return None
        if self._buffer[name.end()] != "(":
            return 0
        for place in range(max(self._scan_from, name.end()), len(self._buffer)):
            if self._close(self._buffer[place]):
                return place + 1
        self._scan_from = len(self._buffer)
        return None

    def _close(self, character: str) -> bool:
        """Follows quotes and brackets; true at the character that closes the outermost."""
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == self._quote:
                self._quote = ""
        elif character in "\"'":
            self._quote = character
        elif character in "([{":
            self._closers.append(character)
        elif character in ")]}":
            self._closers.pop()
            return not self._closers
        return False

    def _end(self) -> bool:
        bare = self._buffer.lstrip()
        if END.startswith(bare) and bare != END:
            return False
        self._buffer = bare.removeprefix(END)
        self._state = self._pass_content
        return True


def parsed_call(text: str) -> tuple[str, str] | None:
    """The name and the arguments as JSON of a call in Python; None if it is none or has other arguments."""
    name = text.partition("(")[0]
    try:
        # Names of functions need not be Python's.
        call = ast.parse("f" + text[len(name) :], mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
            return None
        arguments = {_keyword(each.arg): _literal(each.value) for each in call.keywords}
        return name, json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _keyword(name: str | None) -> str:
    if name is None:
        raise ValueError("** has no name")
    return name


def _literal(node: ast.expr) -> Any:
    """The value of a literal, in which JSON's words count too. Raises ValueError for anything else."""
    match node:
        case ast.Name(id=word) if word in _JSON_WORDS:
            return _JSON_WORDS[word]
        case ast.List(elts=values) | ast.Tuple(elts=values):
            return [_literal(value) for value in values]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _literal(value) for key, value in zip(keys, values, strict=True)}
        case _:
            value = ast.literal_eval(node)
            if not isinstance(value, str | int | float | None):
                raise ValueError("JSON has no such value")
            return value


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise ValueError("the keys of JSON objects are strings")
    return node.value
