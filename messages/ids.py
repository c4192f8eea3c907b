"""Identifiers and the few words that every actor shares.

A request of n samples owns the n consecutive sequence ids `request_id .. request_id + n - 1`, so that a
sequence id alone says which request and which sample it belongs to. Each text edge counts in a range of
its own.
"""

from typing import Final, Literal

RequestId = int
SequenceId = int

FinishReason = Literal["stop", "length", "abort", "error", "tool_calls", "timeout"]

# Finish codes of StepOutput rows, index = code. Code 0 means that the row goes on.
FINISH_NONE: Final = 0
FINISH_STOP: Final = 1
FINISH_LENGTH: Final = 2
FINISH_ERROR: Final = 3
FINISH_REASONS: Final[tuple[FinishReason | None, ...]] = (None, "stop", "length", "error")

# Why a client's request failed.
ErrorCode = Literal[
    "invalid_request",  # the client must change the request
    "context_length_exceeded",  # likewise: the prompt is too long
    "overloaded",  # try again later
    "unavailable",  # the daemon is starting, draining or going down
    "unsupported",  # this model or version cannot do it
    "internal",  # our fault
]

EDGE_ID_BITS: Final = 48


def first_request_id(edge_index: int) -> RequestId:
    """The first id of a text edge's own range of 2**48 ids."""
    return edge_index << EDGE_ID_BITS
