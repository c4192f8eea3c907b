"""How long streams pause when an actor is struck."""

import itertools
from collections.abc import Iterable, Sequence

from pillion.runtime.chaos.answers import Answer
from pillion.runtime.chaos.strikes import Blow
from pillion.runtime.clock import NS_PER_S


def pauses_s(blows: Sequence[Blow], answers: Iterable[Answer]) -> dict[str, list[float]]:
    """Per actor, and apart for those that were only stopped: seconds from each blow to the next token.

    Of every stream that ran when the blow fell, the longest wait for something new between this blow and the
    next one counts: what was already on its way does not. Blows that fell so soon after another one that a
    stream was still waiting are left out.
    """
    streams = [answer.arrivals_ns for answer in answers if len(answer.arrivals_ns) > 1]
    found: dict[str, list[float]] = {}
    previous_end_ns = 0
    for number, blow in enumerate(blows):
        until_ns = blows[number + 1].time_ns if number + 1 < len(blows) else None
        waits = [
            wait
            for arrivals in streams
            if arrivals[0] < blow.time_ns < arrivals[-1]
            for wait in [_longest_wait(arrivals, blow.time_ns, until_ns)]
        ]
        if not waits:
            continue
        end_ns = max(end for _, end in waits)
        alone = blow.time_ns > previous_end_ns and (until_ns is None or end_ns < until_ns)
        previous_end_ns = max(previous_end_ns, end_ns)
        if alone:
            name = f"{blow.actor} (stopped)" if blow.stops else blow.actor
            found.setdefault(name, []).extend(wait / NS_PER_S for wait, _ in waits)
    return found


def _longest_wait(arrivals: Sequence[int], blow_ns: int, until_ns: int | None) -> tuple[int, int]:
    """The longest wait that reaches beyond the blow, counted from it, and when it ended."""
    waits = [
        (later - max(earlier, blow_ns), later)
        for earlier, later in itertools.pairwise(arrivals)
        if later > blow_ns and (until_ns is None or earlier < until_ns)
    ]
    return max(waits)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of all values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
