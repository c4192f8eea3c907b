"""Columns and frames."""

import math
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillion.messages import codec
from pillion.messages.codec import Codec
from pillion.messages.control import Drain, Shutdown
from pillion.messages.ids import EDGE_ID_BITS, FINISH_REASONS, first_request_id


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_ids_are_little_endian_int32(ids: list[int]) -> None:
    data = codec.pack_ids(ids)
    assert data == struct.pack(f"<{len(ids)}i", *ids)
    assert codec.unpack_ids(data) == ids
    assert codec.unpack_ids(memoryview(data)) == ids
    assert codec.num_ids(data) == len(ids)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_int64_columns(values: list[int]) -> None:
    data = codec.pack_int64(values)
    assert data == struct.pack(f"<{len(values)}q", *values)
    assert codec.unpack_int64(data) == values


@given(st.lists(st.floats(width=32)))
def test_float_columns(values: list[float]) -> None:
    unpacked = codec.unpack_floats(codec.pack_floats(values))
    assert len(unpacked) == len(values)
    for value, again in zip(values, unpacked, strict=True):
        assert value == again or (math.isnan(value) and math.isnan(again))


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**63])
def test_an_id_that_is_no_int32_is_refused(value: int) -> None:
    with pytest.raises(OverflowError):
        codec.pack_ids([value])


@given(st.binary(max_size=300))
def test_a_frame_announces_its_length(payload: bytes) -> None:
    data = codec.frame(payload)
    assert codec.frame_length(data) == len(payload)
    assert codec.frame_length(bytearray(data[: codec.FRAME_HEADER_BYTES])) == len(payload)
    assert data[codec.FRAME_HEADER_BYTES :] == payload


def test_a_codec_takes_its_union_and_nothing_else() -> None:
    messages: Codec[Drain | Shutdown] = Codec(Drain | Shutdown)
    assert messages.decode(messages.encode(Drain(deadline_ns=5))) == Drain(deadline_ns=5)
    assert messages.decode(memoryview(messages.encode(Shutdown()))) == Shutdown()
    for wrong in ("text", ["Drain", "5"], ["Drain"], ["Unknown"], {"type": "Drain"}, [], None):
        with pytest.raises(msgspec.DecodeError):
            messages.decode(messages.encode(wrong))


def test_ranges_of_request_ids_do_not_overlap() -> None:
    assert first_request_id(0) == 0
    assert first_request_id(3) - first_request_id(2) == 2**EDGE_ID_BITS
    assert FINISH_REASONS[0] is None
    assert len(set(FINISH_REASONS)) == len(FINISH_REASONS)
