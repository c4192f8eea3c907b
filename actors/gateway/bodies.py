"""Bodies of requests: JSON into the struct of a route, with every complaint naming its field."""

import re
from collections.abc import Sequence
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
    """A request, and the names of the fields that it has and this server does not know."""

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
    return Body(request, _unknown(fields, kind.__struct_encode_fields__))


def _unknown(fields: dict[str, Any], known: Sequence[str]) -> tuple[str, ...]:
    # A null is how some clients leave a field out.
    return tuple(name for name, value in fields.items() if name not in known and value is not None)
