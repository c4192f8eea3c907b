"""Frames out of a byte stream that arrives in pieces of any size."""

from pillion.messages.codec import FRAME_HEADER_BYTES, frame_length
from pillion.messages.text import MAX_FRAME_BYTES


class FrameBuffer:
    """Collects received bytes and yields the payloads of complete frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """The payloads that these bytes complete. Raises ValueError for a frame above the size limit."""
        buffer = self._buffer
        buffer += data
        payloads = []
        start, end = 0, len(buffer)
        with memoryview(buffer) as view:
            while end - start >= FRAME_HEADER_BYTES:
                body = start + FRAME_HEADER_BYTES
                length = frame_length(buffer, start)
                if length > MAX_FRAME_BYTES:
                    raise ValueError(
                        f"a frame of {length} bytes; at most {MAX_FRAME_BYTES} are allowed"
                    )
                if end < body + length:
                    break
                start = body + length
                payloads.append(bytes(view[body:start]))
        if start:
            del buffer[:start]
        return payloads
