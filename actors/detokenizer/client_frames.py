"""Frames of clients become messages, or an answer that says what is wrong with them."""

import re
from typing import Any, Final

import msgspec

from pillion.messages.inboxes import ClientToDaemon
from pillion.messages.sampling import SamplingParams
from pillion.runtime.errors import InvalidRequest

_DECODER: Final[msgspec.msgpack.Decoder[ClientToDaemon]] = msgspec.msgpack.Decoder(ClientToDaemon)
_PATH: Final = re.compile(r"(.*) - at `(?:key` in `)?\$\.?(.*)`", re.DOTALL)
_FIELD: Final = re.compile(r"(?:sampling_params\.)?(\w+)")
_PARAMS: Final = frozenset(SamplingParams.__struct_fields__)


class MalformedFrame(InvalidRequest):
    """A frame that is no message of the protocol; `client_request_id` is "" if it cannot be made out."""

    def __init__(self, message: str, param: str | None, client_request_id: str) -> None:
        super().__init__(message, param)
        self.client_request_id = client_request_id


def decode_frame(payload: bytes) -> ClientToDaemon:
    """The message of a frame. Raises MalformedFrame naming the field that is wrong."""
    try:
        return _DECODER.decode(payload)
    except RecursionError as error:
        raise MalformedFrame("the frame is nested too deeply", None, "") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message, param = _described(str(error))
        raise MalformedFrame(message, param, _request_id(payload)) from error


def _described(error: str) -> tuple[str, str | None]:
    """msgspec's message and path as a message and the field to change."""
    match = _PATH.fullmatch(error)
    if match is None:
        return f"malformed frame: {error}", None
    message, path = match[1], match[2]
    # SamplingParams checks itself; its messages begin with the field's name.
    name = re.match(r"\w+", message)
    if path == "sampling_params" and name and name[0] in _PARAMS:
        return message, name[0]
    field = _FIELD.match(path)
    return (f"{path}: {message}" if path else message), field and field[1]


def _request_id(payload: bytes) -> str:
    try:
        raw: Any = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    client_request_id = raw.get("client_request_id") if isinstance(raw, dict) else None
    return client_request_id if isinstance(client_request_id, str) else ""
