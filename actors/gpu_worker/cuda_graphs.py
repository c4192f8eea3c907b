"""Decode steps captured as CUDA graphs, per padded number of rows."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from pillion.actors.gpu_worker.model_executor import ModelExecutor, ModelOutput
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.actors.gpu_worker.step_inputs import StepInputs
from pillion.kernels.greedy_step import greedy_step
from pillion.runtime.errors import InvariantBroken

if TYPE_CHECKING:
    from pillion.actors.gpu_worker.input_preparer import InputPreparer

# A step is padded to the next of these; beyond the last they go on in steps of 64.
_SIZES: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
_LARGE_STEP: Final = 64


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Numbers of rows worth a graph, ascending; the last one takes max_num_seqs rows."""
    beyond = range(_SIZES[-1] + _LARGE_STEP, max_num_seqs + _LARGE_STEP, _LARGE_STEP)
    sizes = [size for size in (*_SIZES, *beyond) if size < max_num_seqs]
    return [*sizes, max_num_seqs]


@dataclass(frozen=True, slots=True)
class _GreedyEnd:
    """From logits to updated slots and the columns for the host, [4, num_rows] int32."""

    graph: torch.cuda.CUDAGraph
    columns: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecodeGraph:
    """A step of so many rows, from its slots to its logits, and two copies of its greedy end.

    The columns of one step are copied to the host while the next step runs, so ends take turns.
    """

    num_rows: int
    # [num_rows] int64; rows beyond a step's own name the scratch slot
    slots: torch.Tensor
    inputs: StepInputs
    # [num_rows, hidden_size] and [num_rows, vocab_size] float32
    hidden: torch.Tensor
    logits: torch.Tensor
    forward: torch.cuda.CUDAGraph
    ends: Iterator[_GreedyEnd]

    def replay(self, num_rows: int) -> ModelOutput:
        """Runs the forward pass for the slots that are set; the output is that of the first rows."""
        self.forward.replay()
        return ModelOutput(self.hidden, self.logits[:num_rows])

    def replay_greedy(self) -> torch.Tensor:
        """Takes the best tokens and updates the slots. Returns the columns, good until the step after next."""
        end = next(self.ends)
        end.graph.replay()
        return end.columns


@dataclass(slots=True)
class GraphTable:
    """The graphs captured so far."""

    _graphs: dict[int, DecodeGraph] = field(default_factory=dict)

    def add(self, graph: DecodeGraph) -> None:
        """From now on steps of up to this many rows may use it."""
        self._graphs[graph.num_rows] = graph
        self._graphs = dict(sorted(self._graphs.items()))

    def find(self, num_rows: int) -> DecodeGraph | None:
        """The smallest graph with room for so many rows."""
        for size, graph in self._graphs.items():
            if size >= num_rows:
                return graph
        return None


class GraphCapturer:
    """Captures graphs one by one, smallest first, with rows that are all masked."""

    def __init__(
        self,
        states: RequestStates,
        input_preparer: "InputPreparer",
        executor: ModelExecutor,
        table: GraphTable,
    ) -> None:
        self._states = states
        self._input_preparer = input_preparer
        self._executor = executor
        self._table = table
        self._pool = torch.cuda.graph_pool_handle()

    def capture_all(self) -> None:
        """Captures every size; runs its kernels once before, so that all are compiled and loaded."""
        for num_rows in graph_sizes(self._states.max_num_seqs):
            self._table.add(self._capture(num_rows))

    @torch.inference_mode()
    def _capture(self, num_rows: int) -> DecodeGraph:
        scratch = np.full(num_rows, self._states.max_num_seqs, dtype=np.int32)
        constants = self._input_preparer.decode_constants(scratch)

        def forward() -> tuple[StepInputs, torch.Tensor, torch.Tensor]:
            inputs = self._input_preparer.decode_inputs(constants)
            output = self._executor.execute(inputs)
            if output.logits is None:
                raise InvariantBroken("a decode step without logits")
            return inputs, output.hidden, output.logits

        def new_columns() -> torch.Tensor:
            return torch.empty((4, num_rows), dtype=torch.int32, device=constants.slots.device)

        inputs, hidden, logits = forward()
        self._greedy_end(inputs, logits, new_columns())
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            inputs, hidden, logits = forward()
        ends = []
        for _ in range(2):
            columns, end = new_columns(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(end, pool=self._pool):
                self._greedy_end(inputs, logits, columns)
            ends.append(_GreedyEnd(end, columns))
        return DecodeGraph(
            num_rows, constants.slots, inputs, hidden, logits, graph, itertools.cycle(ends)
        )

    def _greedy_end(self, inputs: StepInputs, logits: torch.Tensor, columns: torch.Tensor) -> None:
        states = self._states
        greedy_step(
            logits,
            inputs.slots,
            inputs.sample_valid,
            states.token_table,
            states.num_computed,
            states.num_known,
            states.max_total,
            states.finished,
            states.stop_ids,
            columns,
        )
