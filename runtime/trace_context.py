"""Where a request belongs in a trace: W3C Trace Context, and ids for new spans."""

import os
import re
from dataclasses import dataclass
from typing import Final

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
SAMPLED: Final = 1


@dataclass(frozen=True, slots=True)
class SpanId:
    """A span and the trace that it belongs to."""

    trace_id: int
    span_id: int
    flags: int = SAMPLED

    @property
    def traceparent(self) -> str:
        """As it is sent to whoever makes spans beneath this one."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"

    def child(self) -> "SpanId":
        """A new span in the same trace."""
        return SpanId(self.trace_id, new_span_id(), self.flags)


def new_trace() -> SpanId:
    """The first span of a new trace."""
    return SpanId(int.from_bytes(os.urandom(16)) or 1, new_span_id())


def new_span_id() -> int:
    """An id for a span; 0 means none."""
    return int.from_bytes(os.urandom(8)) or 1


def parse_traceparent(text: str) -> SpanId | None:
    """None for what is no traceparent, which is to be ignored."""
    match = _TRACEPARENT.fullmatch(text)
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    return SpanId(trace_id, span_id, int(match[4], 16)) if trace_id and span_id else None
