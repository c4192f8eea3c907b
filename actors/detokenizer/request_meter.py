"""What the text edge counts of requests: sizes, times and reasons, for the metrics."""

from collections.abc import Mapping
from typing import Final, get_args

from pillion.actors.detokenizer.open_requests import OpenRequest, OpenSample
from pillion.messages.control import Tally
from pillion.messages.ids import FinishReason
from pillion.messages.steps import StepTimes
from pillion.runtime.clock import NS_PER_S
from pillion.runtime.histogram import SECONDS, Histogram

# They contain the bounds that vLLM's metrics of these names have, so that queries for one bound find it.
FIRST_TOKEN_SECONDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_SECONDS: Final = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0,
    2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_SECONDS: Final = (
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
TOKENS: Final = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
STEP_TOKENS: Final = (1.0, *(float(2**power) for power in range(3, 15)))
SAMPLES: Final = (1.0, 2.0, 5.0, 10.0, 20.0)

_BOUNDS: Final = {
    "first_token_seconds": FIRST_TOKEN_SECONDS,
    "inter_token_seconds": TOKEN_SECONDS,
    "per_token_seconds": TOKEN_SECONDS,
    "whole_seconds": REQUEST_SECONDS,
    "queue_seconds": REQUEST_SECONDS,
    "inference_seconds": REQUEST_SECONDS,
    "prefill_seconds": REQUEST_SECONDS,
    "decode_seconds": REQUEST_SECONDS,
    "request_prompt_tokens": TOKENS,
    "request_computed_tokens": TOKENS,
    "request_output_tokens": TOKENS,
    "request_longest_output_tokens": TOKENS,
    "request_max_tokens": TOKENS,
    "request_samples": SAMPLES,
    "step_tokens": STEP_TOKENS,
    "ring_admit_seconds": SECONDS,
    "ring_plan_seconds": SECONDS,
    "ring_first_output_seconds": SECONDS,
    "ring_output_seconds": SECONDS,
}
MISS_REASONS: Final = ("disabled", "cold", "evicted", "diverged", "salt", "request", "short")
_SUCCESSES: Final = ("stop", "length", "tool_calls")


class RequestMeter:
    """Hears of each moment of a request, and keeps numbers alone.

    Each of its samples counts, as in vLLM, but for `request_samples` and `request_longest_output_tokens`.
    """

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {
            "finish_reasons": dict.fromkeys(get_args(FinishReason), 0),
            # Of requests; "" had all cached that may be.
            "cache_miss_reasons": dict.fromkeys(("", *MISS_REASONS), 0),
        }
        self.histograms = {name: Histogram(bounds) for name, bounds in _BOUNDS.items()}
        self._admitted: list[OpenRequest] = []

    def admitted(self, request: OpenRequest) -> None:
        """It goes to the scheduler at the end of this turn."""
        self._admitted.append(request)

    def turn_ends(self, now_ns: int) -> None:
        """What the edge has to send leaves now."""
        for request in self._admitted:
            request.admitted_ns = now_ns
            self._observe("ring_admit_seconds", now_ns - request.arrival_ns)
        self._admitted.clear()

    def scheduled(self, request: OpenRequest, planned_ns: int) -> None:
        """Its first sample is in a plan."""
        request.planned_ns = planned_ns
        self._observe("ring_plan_seconds", planned_ns - request.admitted_ns)
        misses = self.tallies["cache_miss_reasons"]
        misses[request.miss_reason] = misses.get(request.miss_reason, 0) + 1

    def answer_begins(self, request: OpenRequest, now_ns: int) -> None:
        """Its first token is there, of whichever sample."""
        if not request.first_sent and request.planned_ns:
            self._observe("ring_first_output_seconds", now_ns - request.planned_ns)

    def got_first_token(self, sample: OpenSample) -> None:
        """The first one that this edge hears of; what an earlier one has had does not count again."""
        if not sample.token_ids:
            waited_ns = sample.first_token_ns - sample.request.arrival_ns
            self._observe("first_token_seconds", waited_ns)

    def step_ends(
        self, times: StepTimes | None, earlier_ns: Mapping[int, int], now_ns: int
    ) -> None:
        """All rows of a step were taken; so many samples had tokens at these times before, at 0 none."""
        for time_ns, count in earlier_ns.items():
            if time_ns:
                gap_s = (now_ns - time_ns) / NS_PER_S
                self.histograms["inter_token_seconds"].observe(gap_s, count)
        if times is not None:
            num_tokens = times.num_prefill_tokens + times.num_decode_tokens
            self.histograms["step_tokens"].observe(num_tokens)
            if times.answered_ns:
                self._observe("ring_output_seconds", now_ns - times.answered_ns)

    def sample_ends(self, sample: OpenSample, reason: FinishReason, now_ns: int) -> None:
        """No token follows, for this reason. How long it took counts if it came to an end by itself."""
        admitted, max_tokens = sample.request.admitted, sample.request.params.max_tokens
        if admitted is None:
            return
        self.tallies["finish_reasons"][reason] += 1
        sizes = self.histograms
        num_prompt_tokens = len(admitted.prompt_token_ids) // 4
        sizes["request_prompt_tokens"].observe(num_prompt_tokens)
        sizes["request_computed_tokens"].observe(num_prompt_tokens - sample.num_cached_tokens)
        sizes["request_output_tokens"].observe(len(sample.token_ids))
        if max_tokens is not None:
            sizes["request_max_tokens"].observe(max_tokens)
        if reason in _SUCCESSES:
            self._observe_times(sample, now_ns)

    def request_ends(self, request: OpenRequest) -> None:
        """All of its samples have ended."""
        if request.admitted is not None:
            longest = max(len(sample.token_ids) for sample in request.samples)
            self.histograms["request_longest_output_tokens"].observe(longest)
            self.histograms["request_samples"].observe(request.params.n)

    def _observe_times(self, sample: OpenSample, now_ns: int) -> None:
        request = sample.request
        self._observe("whole_seconds", now_ns - request.arrival_ns)
        if not (sample.planned_ns and sample.first_token_ns):
            return
        decode_ns = now_ns - sample.first_token_ns
        self._observe("queue_seconds", sample.planned_ns - request.admitted_ns)
        self._observe("prefill_seconds", sample.first_token_ns - sample.planned_ns)
        self._observe("decode_seconds", decode_ns)
        self._observe("inference_seconds", now_ns - sample.planned_ns)
        if len(sample.token_ids) > 1:
            self._observe("per_token_seconds", decode_ns / (len(sample.token_ids) - 1))

    def _observe(self, name: str, duration_ns: float) -> None:
        self.histograms[name].observe(max(0.0, duration_ns / NS_PER_S))
