"""What one gateway counts. The launcher adds up what all of them have counted."""

from collections.abc import Callable
from typing import Final, Literal

from pillion.actors.gateway.generation import Generation
from pillion.messages.control import Tally
from pillion.runtime.histogram import Histogram

# Every generation received ends in one of these, once: received = their sum + the gauge "open".
Outcome = Literal["finished", "cancelled", "refused", "failed"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("finished", "cancelled", "refused", "failed")

RESPONSE_SECONDS: Final = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters and gauges are also what `pillion status` shows."""

    def __init__(self) -> None:
        self.counters: dict[str, int | float] = {
            "requests_received": 0,
            **{f"requests_{outcome}": 0 for outcome in OUTCOMES},
            "prompt_tokens": 0,
            "cached_prompt_tokens": 0,
            "output_tokens": 0,
            "responses": 0,
        }
        self.gauges: dict[str, int | float | str] = {"open_requests": 0}
        self.tallies: dict[str, Tally] = {"responses": {}}  # by method, route and status
        self.histograms: dict[str, Histogram] = {}  # seconds by method and route
        self.on_change: Callable[[], None] = lambda: None
        self._num_open = 0

    def begin(self) -> None:
        """A generation was received."""
        self.counters["requests_received"] += 1
        self._count_open(1)

    def end(self, generation: Generation, outcome: Outcome) -> None:
        """It has ended."""
        self.counters[f"requests_{outcome}"] += 1
        self.counters["prompt_tokens"] += generation.num_prompt_tokens
        self.counters["cached_prompt_tokens"] += generation.num_cached_tokens
        self.counters["output_tokens"] += generation.num_output_tokens
        self._count_open(-1)

    def count_response(self, method: str, route: str, status: int, seconds: float) -> None:
        """A response has ended, whatever it was for."""
        self.counters["responses"] += 1
        responses, key = self.tallies["responses"], f"{method} {route} {status}"
        responses[key] = responses.get(key, 0) + 1
        times = self.histograms.get(f"{method} {route}")
        if times is None:
            times = self.histograms[f"{method} {route}"] = Histogram(RESPONSE_SECONDS)
        times.observe(seconds)
        self.on_change()

    def _count_open(self, change: int) -> None:
        self._num_open += change
        self.gauges["open_requests"] = self._num_open
        self.on_change()
