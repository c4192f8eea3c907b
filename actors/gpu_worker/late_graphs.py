"""Graphs that a start has left for later, captured between steps: one at a time, those that steps miss first."""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol

import torch

from pillion.actors.gpu_worker.mixed_table import GraphSize, MixedShape
from pillion.actors.gpu_worker.plan_rows import PlanRows
from pillion.runtime.clock import NS_PER_MS

# A worker captures when it has had no step for so long: who asks again behind each answer is not kept waiting.
_QUIET_NS: Final = 100 * NS_PER_MS
# Under a load that never rests there is one graph in so long.
_PERIOD_NS: Final = 500 * NS_PER_MS

logger = logging.getLogger(__name__)


class Capturer(Protocol):
    """Makes graphs."""

    # All that there will be: decode steps ascending, then mixed ones ascending.
    sizes: Sequence[GraphSize]
    # Those without a graph.
    left: list[GraphSize]

    def capture(self, size: GraphSize) -> None:
        """Waits for the device. Takes the size from those that are left."""


class Meter(Protocol):
    """Measures the device's memory."""

    taken_bytes: int

    def measure(self, capture: Callable[[], None]) -> None:
        """Calls it, and counts what it takes."""

    def warn_if_more(self) -> None:
        """That it took more than was kept for it."""


class LateGraphs:
    """Decides between any two steps whether a graph is captured, and which.

    A step for which no graph has room gets its own, at once: this costs it some 50 ms, once. A step that has to take a
    larger one than it might moves its own to the front. Without memory for one of them there will be no more, and steps
    run without. Any other error is the caller's, and there will be no more after it either.
    """

    def __init__(self, capturer: Capturer, meter: Meter) -> None:
        """`capturer` has captured what must be there, measured by `meter`."""
        self.gauges: dict[str, int | float | str] = {}
        self._capturer = capturer
        self._meter = meter
        self._has_stopped = False
        self._quiet_since_ns: int | None = None
        self._due_ns: int | None = None  # under load
        self._note()

    def when_idle(self, now_ns: int) -> int | None:
        """The worker has no step to run or to collect. Returns when it is to be back; None: after a message."""
        if self._is_over:
            return None
        if self._quiet_since_ns is None:
            self._quiet_since_ns = now_ns
        due_ns = self._quiet_since_ns + _QUIET_NS
        if now_ns < due_ns:
            return due_ns
        self._capture(self._capturer.left[0], now_ns)
        return None if self._is_over else now_ns

    def before_step(self, rows: PlanRows, now_ns: int, *, may_wait: bool) -> None:
        """A step with these rows comes next. `may_wait`: also for a graph that it has no use for."""
        self._quiet_since_ns = None
        if self._is_over:
            return
        if self._due_ns is None:
            self._due_ns = now_ns + _PERIOD_NS
        left = self._capturer.left
        fitting = _fitting(self._capturer.sizes, rows)
        best = next(fitting, None)
        if best is not None and best in left:
            if all(size in left for size in fitting):
                self._capture(best, now_ns)
                return
            left.remove(best)
            left.insert(0, best)
        if may_wait and now_ns >= self._due_ns:
            self._capture(left[0], now_ns)

    @property
    def _is_over(self) -> bool:
        return self._has_stopped or not self._capturer.left

    def _capture(self, size: GraphSize, now_ns: int) -> None:
        self._due_ns = now_ns + _PERIOD_NS
        try:
            self._meter.measure(partial(self._capturer.capture, size))
        except Exception as error:
            self._has_stopped = True
            if not _is_out_of_memory(error):
                raise
            logger.warning(
                "no memory for the graph of %s: %d of %d steps stay without one, which are slower (%s)",
                _named(size),
                len(self._capturer.left),
                len(self._capturer.sizes),
                str(error).partition("\n")[0],
            )
        self._note()

    def _note(self) -> None:
        num_left = len(self._capturer.left)
        self.gauges["graphs"] = len(self._capturer.sizes) - num_left
        self.gauges["graphs_left"] = num_left
        self.gauges["graphs_bytes"] = self._meter.taken_bytes
        if self._is_over:
            self._meter.warn_if_more()


def _fitting(sizes: Sequence[GraphSize], rows: PlanRows) -> Iterator[GraphSize]:
    """Those that a step of these rows could take, the best one first."""
    if rows.asks_prompt_logprobs:
        return iter(())
    if not len(rows.prefill_slots):
        return (size for size in sizes if isinstance(size, int) and size >= len(rows))
    wanted = rows.num_tokens, len(rows), len(rows.prefill_slots)
    return (size for size in sizes if isinstance(size, MixedShape) and size.has_room(*wanted))


def _is_out_of_memory(error: Exception) -> bool:
    """Torch has a type for it, the driver and Triton only say so. It may be what has broken a capture."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, torch.OutOfMemoryError) or "out of memory" in str(found):
            return True
        found = found.__context__
    return False


def _named(size: GraphSize) -> str:
    if isinstance(size, MixedShape):
        return f"{size.num_tokens} tokens in {size.num_rows} rows"
    return f"{size} decode rows"
