"""Frames come out whole, however the bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillion.messages.codec import frame
from pillion.messages.text import MAX_FRAME_BYTES
from pillion.runtime.frame_buffer import FrameBuffer


@given(st.lists(st.binary(max_size=50)), st.lists(st.integers(1, 20)))
def test_any_cutting_gives_the_same_frames(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(payload) for payload in payloads)
    buffer = FrameBuffer()
    found: list[bytes] = []
    for cut in cuts:
        found += buffer.feed(stream[:cut])
        stream = stream[cut:]
    found += buffer.feed(stream)
    assert found == payloads


def test_a_frame_above_the_limit() -> None:
    buffer = FrameBuffer()
    with pytest.raises(ValueError, match=f"at most {MAX_FRAME_BYTES}"):
        buffer.feed((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))
