"""The ends of captured steps, as graphs of their own: a step's rows say which end it gets."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.actors.gpu_worker.sampling.sampler import Sampler
from pillion.actors.gpu_worker.sampling.step_end import End, EndResult, EndRows, launch_end


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """What is launched inside is captured, in memory of the pool. Waits for the device.

    What other threads do meanwhile is no error. Behind one, launches go to the stream that they went to before.
    """
    stream = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            yield
    finally:
        torch.cuda.set_stream(stream)


@dataclass(frozen=True, slots=True)
class _CapturedEnd:
    """One of the graphs, and what it writes for the host."""

    graph: torch.cuda.CUDAGraph
    result: EndResult


class EndCapturer:
    """What the ends of all captured steps share."""

    def __init__(
        self, states: RequestStates, sampler: Sampler, pool: Any, steps_in_flight: int = 2
    ) -> None:
        """`pool`: the graphs' memory. `steps_in_flight`: launched before the first one's result is read."""
        self.num_turns = steps_in_flight
        self._states = states
        self._sampler = sampler
        self._pool = pool
        # [max_num_seqs, vocab_size] float32; logits before they are edited
        self._raw: torch.Tensor | None = None

    def run_masked(self, end: End, logits: torch.Tensor, rows: EndRows) -> EndResult:
        """Launches everything for as many rows, all masked, which changes nothing; returns an empty result.

        What the rows hold is not read: those of a captured step are made when it is replayed, and lie in memory that
        other steps have used before.
        """
        masked = EndRows(
            torch.full_like(rows.slots, self._states.max_num_seqs),
            torch.zeros_like(rows.valid),
            torch.zeros_like(rows.advance),
        )
        result = EndResult.empty(end, len(rows.slots), logits.device)
        self.launch(end, logits, masked, result)
        return result

    def warm_up(self) -> None:
        """Runs every kind of end once: none is compiled or loaded while a step waits for it."""
        tables = self._sampler.tables()
        device, vocab_size = tables.shape.device, tables.edits.token_counts.shape[1]
        logits = torch.zeros((1, vocab_size), dtype=torch.float32, device=device)
        nothing = torch.zeros(1, dtype=torch.int64, device=device)
        rows = EndRows(nothing + self._states.max_num_seqs, nothing != 0, nothing)
        for end in End:
            self.run_masked(end, logits, rows)

    def launch(self, end: End, logits: torch.Tensor, rows: EndRows, result: EndResult) -> None:
        """Writes: logits, result, the slots' state."""
        tables = self._sampler.tables()
        # Columns beyond the vocabulary are padding.
        vocab_size = tables.edits.token_counts.shape[1]
        logits = logits[:, :vocab_size]
        if self._raw is None:
            self._raw = logits.new_empty((self._states.max_num_seqs, vocab_size))
        raw = self._raw[: len(logits)]
        launch_end(end, logits, raw, rows, self._states.tables(), tables, result)

    def capture(
        self, end: End, logits: torch.Tensor, rows: EndRows, result: EndResult
    ) -> _CapturedEnd:
        """Of launches whose kernels are compiled and loaded."""
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, self._pool):
            self.launch(end, logits, rows, result)
        return _CapturedEnd(graph, result)


@dataclass(slots=True)
class CapturedEnds:
    """Of one captured step. All but the greedy end are captured when a step first needs them.

    There are as many of each as steps are in flight, which take turns: the results of one step are copied to the host
    while the others run.
    """

    _capturer: EndCapturer
    # [num_rows, vocab_size or wider] float32
    _logits: torch.Tensor
    _rows: EndRows
    _ends: dict[End, Iterator[_CapturedEnd]] = field(default_factory=dict)

    def replay(self, end: End) -> EndResult:
        """Runs it, on the logits that are there."""
        if end not in self._ends:
            self.capture(end)
        captured = next(self._ends[end])
        captured.graph.replay()
        return captured.result

    def capture(self, end: End) -> None:
        """Waits for the device."""
        capturer = self._capturer
        results = [
            capturer.run_masked(end, self._logits, self._rows) for _ in range(capturer.num_turns)
        ]
        self._ends[end] = itertools.cycle(
            [capturer.capture(end, self._logits, self._rows, each) for each in results]
        )
