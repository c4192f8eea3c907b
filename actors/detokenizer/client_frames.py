"""Frames of clients become messages, or an answer that says what is wrong with them."""

import re
from typing import Any, Final

import msgspec

from pillion.messages.inboxes import ClientToDaemon
from pillion.messages.sampling import SamplingParams
from pillion.runtime.errors import InvalidRequest
from pillion.runtime.type_errors import complaint_of

_DECODER: Final[msgspec.msgpack.Decoder[ClientToDaemon]] = msgspec.msgpack.Decoder(ClientToDaemon)
_PARAMS: Final = frozenset(SamplingParams.__struct_fields__)
# Clients set these fields without the struct around them.
_PARAMS_PATH: Final = "sampling_params."


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
    except msgspec.ValidationError as error:
        raw = _raw(payload)
        message, param = _described(error, raw)
        raise MalformedFrame(message, param, _request_id(raw)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedFrame(f"malformed frame: {error}", None, "") from error


def _described(error: msgspec.ValidationError, raw: Any) -> tuple[str, str | None]:
    complaint = complaint_of(error, raw)
    if complaint.field != "sampling_params":
        return complaint.message, complaint.field
    # What SamplingParams itself finds wrong begins with the field's name.
    message = complaint.message.replace(_PARAMS_PATH, "", 1)
    names = (name for name in re.findall(r"\w+", message) if name in _PARAMS)
    return message, next(names, "sampling_params")


def _raw(payload: bytes) -> Any:
    """The frame without a type; None if that cannot be read either."""
    try:
        return msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _request_id(raw: Any) -> str:
    client_request_id = raw.get("client_request_id") if isinstance(raw, dict) else None
    return client_request_id if isinstance(client_request_id, str) else ""
