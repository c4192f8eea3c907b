"""What the scheduler counts."""

from typing import Final

from pillion.messages.ids import FinishReason

Counters = dict[str, int | float]
Gauges = dict[str, int | float | str]

# Samples (a request of n samples counts n times): received = rejected + the outcomes + forgotten + the gauge
# "open". Those forgotten with a worker that died are received again.
OUTCOMES: Final[tuple[FinishReason, ...]] = (
    "stop",
    "length",
    "tool_calls",
    "abort",
    "timeout",
    "error",
)


# Bounds of the histogram of preemptions that a sample went through.
PREEMPTIONS: Final = (0.0, 1.0, 2.0, 5.0, 10.0)


def new_counters() -> Counters:
    """All counters at zero, so that `pillion status` shows them from the start."""
    names = ["received", "rejected", "forgotten", *(f"finished_{outcome}" for outcome in OUTCOMES)]
    names += ["preemptions", "prompt_tokens", "cached_prompt_tokens", "generated_tokens"]
    names += ["plans", "steps", "stale_rows", "failed_steps"]
    return dict.fromkeys(names, 0)
