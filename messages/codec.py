"""Bytes of messages: msgpack for structs, packed little-endian arrays for columns."""

import struct
import sys
from array import array
from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec

T = TypeVar("T")

_LENGTH: Final = struct.Struct("<I")
FRAME_HEADER_BYTES: Final = _LENGTH.size

if sys.byteorder != "little":
    raise ImportError("pillion's wire format is little-endian and this machine is not")


class Codec(Generic[T]):
    """Encodes anything and decodes one inbox's union. Raises msgspec.DecodeError on a malformed frame."""

    def __init__(self, union: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)

    def encode(self, message: object) -> bytes:
        """The bytes of a message."""
        return self._encoder.encode(message)

    def decode(self, data: bytes | memoryview) -> T:
        """The message of these bytes."""
        return self._decoder.decode(data)


def frame(payload: bytes) -> bytes:
    """A payload with its length in front, as the client protocol sends it."""
    return _LENGTH.pack(len(payload)) + payload


def frame_length(data: bytes | bytearray | memoryview, start: int = 0) -> int:
    """The payload length that the first four bytes of the frame at `start` announce."""
    length: int = _LENGTH.unpack_from(data, start)[0]
    return length


def pack_ids(token_ids: Iterable[int]) -> bytes:
    """Token or block ids as packed int32. Raises OverflowError for an id that is not an int32."""
    return array("i", token_ids).tobytes()


def unpack_ids(data: bytes | memoryview) -> list[int]:
    """Packed int32 as a list."""
    return memoryview(data).cast("B").cast("i").tolist()


def num_ids(data: bytes) -> int:
    """How many int32 a column holds."""
    return len(data) // 4


def pack_int64(values: Iterable[int]) -> bytes:
    """Packed int64."""
    return array("q", values).tobytes()


def unpack_int64(data: bytes | memoryview) -> list[int]:
    """Packed int64 as a list."""
    return memoryview(data).cast("B").cast("q").tolist()


def pack_floats(values: Iterable[float]) -> bytes:
    """Packed float32."""
    return array("f", values).tobytes()


def unpack_floats(data: bytes | memoryview) -> list[float]:
    """Packed float32 as a list."""
    return list(memoryview(data).cast("B").cast("f"))
