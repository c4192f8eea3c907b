"""W3C Trace Context."""

import pytest

from pillion.runtime.trace_context import SpanId, new_trace, parse_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize("flags", ["00", "01", "ff"])
def test_there_and_back(flags: str) -> None:
    text = f"00-{TRACE}-{SPAN}-{flags}"
    parsed = parse_traceparent(text)
    assert parsed == SpanId(int(TRACE, 16), int(SPAN, 16), int(flags, 16))
    assert parsed is not None
    assert parsed.traceparent == text


def test_a_later_version_may_have_more_fields() -> None:
    assert parse_traceparent(f"01-{TRACE}-{SPAN}-01-more") is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
    ],
)
def test_anything_else_is_ignored(text: str) -> None:
    assert parse_traceparent(text) is None


def test_children_stay_in_their_trace() -> None:
    parent = new_trace()
    child = parent.child()
    assert (child.trace_id, child.flags) == (parent.trace_id, parent.flags)
    assert len({parent.span_id, child.span_id, parent.child().span_id}) == 3
    assert parse_traceparent(child.traceparent) == child
