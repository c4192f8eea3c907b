"""msgspec's complaints in our words: which field, what it must be, and what it got."""

import re
from dataclasses import dataclass
from typing import Any, Final

# "Expected `int | null`, got `str` - at `$.stop[0]`"
_COMPLAINT: Final = re.compile(
    r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`)?", re.DOTALL
)
_EXPECTED: Final = re.compile(r"Expected `(?P<wanted>.*)`, got `(?P<got>.*)`", re.DOTALL)
_FIELD: Final = re.compile(
    r"Object (?P<how>missing required|contains unknown) field `(?P<name>.*)`"
)
_VALUE: Final = re.compile(r"Invalid (?:enum )?value (?P<value>.*)", re.DOTALL)
_STEP: Final = re.compile(r"(?P<name>[^.\[\]]+)|\[(?P<index>[0-9]+)\]|(?P<any>\[\.\.\.\])")
_WORDS: Final = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bytes": "bytes",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_MAX_SHOWN_CHARS: Final = 80


@dataclass(frozen=True, slots=True)
class TypeComplaint:
    """What is wrong with some data."""

    path: str  # such as "stop[0]"; "" if it is the data itself
    message: str  # begins with the path, where there is one

    @property
    def field(self) -> str | None:
        """The outermost field to change, if there is one."""
        match = _STEP.match(self.path)
        return match["name"] if match else None


def complaint_of(error: Exception, data: Any) -> TypeComplaint:
    """Describes a msgspec.ValidationError that came of this data."""
    match = _COMPLAINT.fullmatch(str(error))
    what, path = (match["what"], match["path"] or "") if match else (str(error), "")
    if expected := _EXPECTED.fullmatch(what):
        subject = path or "it"
        got = _WORDS.get(expected["got"], expected["got"])
        if match and match["key"]:
            subject = f"a key of {subject}"
        elif path.endswith("[...]"):
            subject = f"a value of {path.removesuffix('[...]')}"
        else:
            got = _shown(data, path, got)
        return TypeComplaint(path, f"{subject} must be {_wanted(expected['wanted'])}, got {got}")
    if field := _FIELD.fullmatch(what):
        if field["how"] == "contains unknown":
            return TypeComplaint(path, f"{path or 'it'} has no field {field['name']!r:.80}")
        whole = f"{path}.{field['name']}" if path else field["name"]
        return TypeComplaint(whole, f"{whole} is missing")
    if value := _VALUE.fullmatch(what):
        return TypeComplaint(path, f"{path or 'it'} cannot be {value['value'][:_MAX_SHOWN_CHARS]}")
    # A check of our own, which names the field itself.
    return TypeComplaint(path, what)


def _wanted(types: str) -> str:
    words = [_WORDS.get(name, name) for name in types.split(" | ")]
    if len(words) > 1 and "null" in words:
        words.remove("null")  # the same as leaving the field out
    return " or ".join(words)


def _shown(data: Any, path: str, kind: str) -> str:
    """The value at this path, in a few words whatever its size; else its kind."""
    for step in _STEP.finditer(path):
        try:
            data = data[step["name"] or int(step["index"] or "")]
        except (LookupError, TypeError, ValueError):
            return kind
    if isinstance(data, dict | list | bytes) or data is None:
        return kind
    return f"{data!r:.{_MAX_SHOWN_CHARS}}"
