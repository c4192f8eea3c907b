"""Steps captured as CUDA graphs: decode rows per padded number of rows, mixed ones per number of tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from pillion.actors.gpu_worker.captured_ends import CapturedEnds, EndCapturer, capturing
from pillion.actors.gpu_worker.mixed_table import GraphSize, MixedShape
from pillion.actors.gpu_worker.model_executor import ModelExecutor, ModelOutput
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.actors.gpu_worker.sampling.sampler import Sampler
from pillion.actors.gpu_worker.sampling.step_end import End, EndResult, EndRows
from pillion.actors.gpu_worker.step_inputs import StepInputs
from pillion.runtime.errors import InvariantBroken

if TYPE_CHECKING:
    from pillion.actors.gpu_worker.captured_inputs import CapturedInputs
    from pillion.actors.gpu_worker.eager_inputs import EagerInputs

# A step is padded to the next of these; beyond the last they go on in steps of 64.
_SIZES: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
_LARGE_STEP: Final = 64
# Tokens of mixed steps, and the rows that many of them have. What lies between is padded by less, for steps that many
# streams take part in: beyond some 256 tokens a step takes as long as it has tokens.
_MIXED_TOKENS: Final = (128, 256, 512, 1024, 2048, 4096, 8192)
_BETWEEN_TOKENS: Final = (384, 640, 768, 1280, 1536, 2560, 3072, 5120, 6144)
_FEW_ROWS: Final = 16
# A worker is ready with graphs of so many decode rows, and of mixed steps of so many tokens.
_FIRST_ROWS: Final = 8
_FIRST_TOKENS: Final = 256
# A mixed step with so much to multiply keeps a device busy for 24 ms, longer than its launches take one by one.
_FLOP_WORTH_A_GRAPH: Final = 17e12
# What one layer of a captured step takes on the device: 8 to 13 launches of about 20 KiB.
_LAYER_BYTES: Final = 256 << 10


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Numbers of rows worth a graph, ascending; the last one takes max_num_seqs rows."""
    beyond = range(_SIZES[-1] + _LARGE_STEP, max_num_seqs + _LARGE_STEP, _LARGE_STEP)
    sizes = [size for size in (*_SIZES, *beyond) if size < max_num_seqs]
    return [*sizes, max_num_seqs]


def mixed_shapes(max_num_seqs: int, max_num_tokens: int, num_weights: int) -> list[MixedShape]:
    """Steps with prefill rows that are worth a graph, for a model of so many weights; ascending."""
    most = min(max_num_tokens, _FLOP_WORTH_A_GRAPH / (2 * num_weights))
    few_rows = min(_FEW_ROWS, max_num_seqs)
    sizes = {(num_tokens, few_rows) for num_tokens in _MIXED_TOKENS}
    sizes |= {(num_tokens, max_num_seqs) for num_tokens in (*_MIXED_TOKENS, *_BETWEEN_TOKENS)}
    return [
        MixedShape(num_tokens, num_rows, min(num_rows, max(8, num_tokens // 64)))
        for num_tokens, num_rows in sorted(sizes)
        if num_rows <= num_tokens <= most
    ]


def expected_graph_bytes(
    max_num_seqs: int,
    shapes: list[MixedShape],
    num_layers: int,
    vocab_size: int,
    token_bytes: float,
) -> int:
    """Memory of the captured steps of a model before there are any.

    These are logits, as they are and edited, nodes, and what the largest of the steps takes: all of them share it.
    `token_bytes`: of a step, for each of its tokens.
    """
    num_graphs = len(graph_sizes(max_num_seqs)) + len(shapes)
    most_tokens = max([max_num_seqs, *(shape.num_tokens for shape in shapes)])
    logits_bytes = 8 * max_num_seqs * vocab_size
    return logits_bytes + num_graphs * num_layers * _LAYER_BYTES + int(most_tokens * token_bytes)


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A step from its slots to its logits, and its ends from there to updated slots."""

    inputs: StepInputs
    # [num_rows, hidden_size]
    hidden: torch.Tensor
    # [num_rows, vocab_size] float32; all captured steps share this memory
    logits: torch.Tensor
    forward: torch.cuda.CUDAGraph
    ends: CapturedEnds

    def replay(self, num_rows: int) -> ModelOutput:
        """Runs the forward pass for the slots that are set; the logits are those of the first rows."""
        self.forward.replay()
        return ModelOutput(self.hidden, self.logits[:num_rows])

    def replay_end(self, end: End) -> EndResult:
        """Takes tokens and updates the slots. Returns what is good while this step is in flight."""
        return self.ends.replay(end)


@dataclass(frozen=True, slots=True)
class DecodeGraph:
    """A step of so many decode rows."""

    num_rows: int
    # [num_rows] int64; rows beyond a step's own name the scratch slot
    slots: torch.Tensor
    step: CapturedStep


@dataclass(frozen=True, slots=True)
class MixedGraph:
    """A step with prefill rows."""

    shape: MixedShape
    # [shape.size] int32; see MixedTable
    table: torch.Tensor
    step: CapturedStep


@dataclass(slots=True)
class GraphTable:
    """The graphs captured so far."""

    _decode: dict[int, DecodeGraph] = field(default_factory=dict)
    _mixed: list[MixedGraph] = field(default_factory=list)
    # numbers of rows whose logits the start has computed, ascending
    sample_rows: Sequence[int] = ()

    def add(self, graph: DecodeGraph) -> None:
        """From now on steps of up to this many decode rows may use it."""
        self._decode[graph.num_rows] = graph
        self._decode = dict(sorted(self._decode.items()))

    def add_mixed(self, graph: MixedGraph) -> None:
        """From now on steps that it has room for may use it."""
        self._mixed.append(graph)
        self._mixed.sort(key=lambda mixed: mixed.shape)

    def padded_sample_rows(self, num_rows: int) -> int:
        """How many rows a step that is not captured should sample, if it has so many.

        Products of a size that is new make the library load another kernel, and that waits for all that was
        launched; so there are few sizes, all of which the start has run.
        """
        if num_rows <= 1:
            return num_rows
        return next((size for size in self.sample_rows if size >= num_rows), num_rows)

    def find(self, num_rows: int) -> DecodeGraph | None:
        """The smallest graph with room for so many decode rows."""
        for size, graph in self._decode.items():
            if size >= num_rows:
                return graph
        return None

    def find_mixed(
        self, num_tokens: int, num_rows: int, num_prefill_rows: int
    ) -> MixedGraph | None:
        """The smallest graph with room for a step with prefill rows."""
        for graph in self._mixed:
            if graph.shape.has_room(num_tokens, num_rows, num_prefill_rows):
                return graph
        return None


class GraphCapturer:
    """Captures graphs one by one, smallest first, with rows that are all masked.

    Steps may be launched meanwhile: a capture waits for them, and changes nothing that they or others read.
    """

    def __init__(
        self,
        states: RequestStates,
        eager_inputs: "EagerInputs",
        mixed_inputs: "CapturedInputs",
        executor: ModelExecutor,
        table: GraphTable,
        shapes: list[MixedShape],
        sampler: Sampler,
        steps_in_flight: int = 2,
    ) -> None:
        self._states = states
        self._eager_inputs = eager_inputs
        self._mixed_inputs = mixed_inputs
        self._executor = executor
        self._table = table
        self.shapes = shapes
        self.sizes: Sequence[GraphSize] = [*graph_sizes(states.max_num_seqs), *shapes]
        self.left: list[GraphSize] = [*self.sizes]
        self._pool = torch.cuda.graph_pool_handle()
        self._end_capturer = EndCapturer(states, sampler, self._pool, steps_in_flight)
        # [most rows, vocab_size] float32
        self._logits: torch.Tensor | None = None

    def capture_first(self) -> None:
        """Captures the sizes that a worker is ready with, and runs what no capture that is left would run first."""
        for size in [size for size in self.left if _is_first(size)]:
            self.capture(size)
        self.warm_up_ends()
        self._warm_up_head()

    def capture_all(self) -> None:
        """Captures every size that is left, and the first ones before."""
        self.capture_first()
        for size in [*self.left]:
            self.capture(size)

    def capture(self, size: GraphSize) -> None:
        """One that is left; runs its kernels once before, so that all are compiled and loaded. Waits for the device."""
        if isinstance(size, MixedShape):
            self.capture_mixed(size)
        else:
            self.capture_decode(size)
        self.left.remove(size)

    @torch.inference_mode()
    def warm_up_ends(self) -> None:
        """Runs every kind of end once: most are captured only when a step needs them."""
        self._end_capturer.warm_up()
        torch.cuda.synchronize()

    @torch.inference_mode()
    def _warm_up_head(self) -> None:
        """Computes logits of the numbers of rows to which steps without a graph are padded."""
        graph = self._table.find(1)
        if graph is None:
            raise InvariantBroken("no step is captured")
        most = self._states.max_num_seqs
        sample_rows = sorted({min(_FEW_ROWS, most), most})
        for num_rows in sample_rows:
            hidden = graph.step.hidden.new_zeros((num_rows, graph.step.hidden.shape[1]))
            self._executor.compute_logits(hidden)
        torch.cuda.synchronize()
        self._table.sample_rows = sample_rows

    @torch.inference_mode()
    def capture_decode(self, num_rows: int) -> None:
        """Of so many decode rows."""
        eager_inputs = self._eager_inputs
        scratch = np.full(num_rows, self._states.max_num_seqs, dtype=np.int32)
        constants = eager_inputs.decode_constants(scratch)
        step = self._capture(lambda: eager_inputs.decode_inputs(constants), num_rows)
        self._table.add(DecodeGraph(num_rows, constants.slots, step))

    @torch.inference_mode()
    def capture_mixed(self, shape: MixedShape) -> None:
        """With room for prefill rows."""
        mixed_inputs = self._mixed_inputs
        table = mixed_inputs.empty_mixed_table(shape)
        step = self._capture(lambda: mixed_inputs.mixed_inputs(shape, table), shape.num_rows)
        self._table.add_mixed(MixedGraph(shape, table, step))

    def _capture(self, make_inputs: Callable[[], StepInputs], num_rows: int) -> CapturedStep:
        def forward(logits: torch.Tensor | None) -> tuple[StepInputs, torch.Tensor, torch.Tensor]:
            inputs = make_inputs()
            output = self._executor.execute(inputs, logits)
            if output.logits is None:
                raise InvariantBroken("a captured step without logits")
            return inputs, output.hidden, output.logits

        _, _, found = forward(None)
        torch.cuda.synchronize()
        if self._logits is None:
            self._logits = found.new_empty((self._states.max_num_seqs, found.shape[1]))
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, self._pool):
            inputs, hidden, logits = forward(self._logits[:num_rows])
        rows = EndRows(inputs.slots, inputs.sample_valid, inputs.advance)
        ends = CapturedEnds(self._end_capturer, logits, rows)
        ends.capture(End.GREEDY)
        return CapturedStep(inputs, hidden, logits, graph, ends)


def _is_first(size: GraphSize) -> bool:
    if isinstance(size, MixedShape):
        return size.num_tokens <= _FIRST_TOKENS
    return size <= _FIRST_ROWS
