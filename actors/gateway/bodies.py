"""Bodies of requests: JSON into the struct of a route, with every complaint naming its field."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from pillion.actors.gateway.http_errors import invalid
from pillion.runtime.type_errors import complaint_of

T = TypeVar("T", bound=msgspec.Struct)

MAX_NAMED_FIELDS: Final = 20
MAX_NAME_CHARS: Final = 64
WARNING_HEADER: Final = b"x-pillion-warning"

_UNPRINTABLE: Final = re.compile(r"[^A-Za-z0-9_.\-]")


@dataclass(frozen=True, slots=True)
class Body(Generic[T]):
    """A request, and the names of the fields that it has and that change nothing here."""

    request: T
    ignored: tuple[str, ...]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The header that names what was ignored, if anything was."""
        if not self.ignored:
            return []
        names = [
            _UNPRINTABLE.sub("?", name[:MAX_NAME_CHARS]) for name in self.ignored[:MAX_NAMED_FIELDS]
        ]
        if len(self.ignored) > MAX_NAMED_FIELDS:
            names.append(f"and {len(self.ignored) - MAX_NAMED_FIELDS} more")
        return [(WARNING_HEADER, f"ignored fields: {', '.join(names)}".encode())]


def read_body(data: bytes, kind: type[T]) -> Body[T]:
    """The request in this body. Raises HttpError 400 naming the field that is missing or wrong."""
    try:
        fields = msgspec.json.decode(data)
    except RecursionError as error:
        raise invalid("the body is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise invalid(f"the body must be a JSON object, got {type(fields).__name__}")
    try:
        request = msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        complaint = complaint_of(error, fields)
        raise invalid(complaint.message, complaint.field) from error
    except RecursionError as error:
        raise invalid("the body is nested too deeply") from error
    return Body(request, tuple(dict.fromkeys(_ignored(fields, request))))


def _ignored(fields: dict[str, Any], read: msgspec.Struct, place: str = "") -> Iterator[str]:
    """Fields that are not known, or known to have no effect (a struct's `NO_EFFECT`), in objects inside too."""
    names = dict(zip(read.__struct_encode_fields__, read.__struct_fields__, strict=True))
    for name, value in fields.items():
        if value is None:  # how some clients leave a field out
            continue
        if name not in names or name in getattr(read, "NO_EFFECT", ()):
            yield place + name
            continue
        inside = getattr(read, names[name])
        if isinstance(inside, msgspec.Struct):
            yield from _ignored(value, inside, f"{place}{name}.")
        elif isinstance(inside, list) and inside and isinstance(inside[0], msgspec.Struct):
            for inner_fields, inner in zip(value, inside, strict=True):
                yield from _ignored(inner_fields, inner, f"{place}{name}.")
