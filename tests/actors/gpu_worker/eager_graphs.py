"""Captured steps on the CPU: their tensors stay where they are, and each replay computes."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch

from pillion.actors.gpu_worker.cuda_graphs import CapturedStep, DecodeGraph
from pillion.actors.gpu_worker.late_graphs import LateGraphs
from pillion.actors.gpu_worker.mixed_table import GraphSize
from pillion.actors.gpu_worker.model_executor import ModelExecutor, ModelOutput
from pillion.actors.gpu_worker.sampling.step_end import End, EndResult, EndRows, launch_end

SIZES = (1, 2, 4, 6)


class EagerStep:
    """In the place of a CapturedStep, of so many decode rows."""

    def __init__(self, rig: Any, num_rows: int) -> None:
        steps = rig.worker._steps
        self._eager, self._states = steps._input_preparer._eager, steps._states
        self._sampler = steps._output_processor._sampler
        self._executor = ModelExecutor(rig.model, rig.kv_cache)
        scratch = np.full(num_rows, self._states.max_num_seqs, dtype=np.int32)
        self.constants = self._eager.decode_constants(scratch)
        self.inputs = self._eager.decode_inputs(self.constants)
        self._logits = torch.empty(0)

    def replay(self, num_rows: int) -> ModelOutput:
        """The forward pass of the slots that are set."""
        inputs = self._eager.decode_inputs(self.constants)
        self.inputs.sample_valid.copy_(inputs.sample_valid)
        self.inputs.advance.copy_(inputs.advance)
        output = self._executor.execute(inputs)
        assert output.logits is not None
        self._logits = output.logits
        return ModelOutput(output.hidden, output.logits[:num_rows])

    def replay_end(self, end: End) -> EndResult:
        """Takes tokens and updates the slots."""
        rows = EndRows(self.inputs.slots, self.inputs.sample_valid, self.inputs.advance)
        result = EndResult.empty(end, len(rows.slots), torch.device("cpu"))
        tables = self._states.tables(), self._sampler.tables()
        launch_end(end, self._logits, self._logits.clone(), rows, *tables, result)
        return result


def add_eager_graphs(rig: Any, sizes: tuple[int, ...] = SIZES) -> None:
    """From now on the rig's decode steps are replays."""
    for num_rows in sizes:
        step = EagerStep(rig, num_rows)
        graph = DecodeGraph(num_rows, step.constants.slots, cast("CapturedStep", step))
        rig.worker._steps._input_preparer._graphs.add(graph)


class _Capturer:
    """Adds these graphs one by one."""

    def __init__(self, rig: Any) -> None:
        self.sizes: Sequence[GraphSize] = SIZES
        self.left: list[GraphSize] = [*SIZES]
        self._rig = rig

    def capture(self, size: GraphSize) -> None:
        assert isinstance(size, int)
        add_eager_graphs(self._rig, (size,))
        self.left.remove(size)


class _Meter:
    taken_bytes = 0

    def measure(self, capture: Callable[[], None]) -> None:
        capture()

    def warn_if_more(self) -> None:
        pass


def add_late_graphs(rig: Any) -> None:
    """Graphs come between steps, as those need them; not while the rig rests."""
    rig.worker._steps._late_graphs = LateGraphs(_Capturer(rig), _Meter())
