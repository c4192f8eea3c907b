"""What a worker counts of its steps."""

from pillion.actors.gpu_worker.forward_step import ForwardStep
from pillion.messages.steps import StepTimes


class StepCounters:
    """Plain numbers under the names that `pillion status` shows.

    The bubble is the time between a step whose answer is there and the next one's beginning, while nothing is
    launched although a sequence could go on: what a plan that came late costs.
    """

    def __init__(self) -> None:
        self.counters: dict[str, int | float] = {
            "steps": 0,
            "graph_steps": 0,
            "failed_steps": 0,
            "prefill_tokens": 0,
            "decode_tokens": 0,
            "prepare_ns": 0,
            "execute_ns": 0,
            "output_ns": 0,
            "bubble_ns": 0,
        }
        self._idle_since_ns = 0  # 0: a step is launched, or nothing waits for one

    def count_step(self, forward: ForwardStep, times: StepTimes) -> None:
        """A step was launched to its end."""
        counters = self.counters
        counters["steps"] += 1
        counters["graph_steps"] += forward.inputs.graph is not None
        counters["prefill_tokens"] += times.num_prefill_tokens
        counters["decode_tokens"] += times.num_decode_tokens
        counters["prepare_ns"] += times.prepare_ns
        counters["execute_ns"] += times.execute_ns
        counters["output_ns"] += times.output_ns

    def step_collected(self, now_ns: int, sequences_wait: bool) -> None:
        """A step's answer is there and no other one is launched."""
        self._idle_since_ns = now_ns if sequences_wait else 0

    def nothing_waits(self) -> None:
        """The table was emptied."""
        self._idle_since_ns = 0

    def step_begins(self, now_ns: int) -> None:
        """The next step with rows begins."""
        if self._idle_since_ns:
            self.counters["bubble_ns"] += now_ns - self._idle_since_ns
            self._idle_since_ns = 0
