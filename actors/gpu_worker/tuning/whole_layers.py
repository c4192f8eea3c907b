"""Layers of a model as a decode step runs them: what a table of forms is worth where products follow each other."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from pillion.actors.gpu_worker.layers.fused_layer import FusedLayer
from pillion.actors.gpu_worker.step_inputs import AttentionInputs
from pillion.actors.gpu_worker.tuning.plan import TuningPlan
from pillion.actors.gpu_worker.tuning.timing import graph_us, relative_error
from pillion.kernels.fused_linear.tiles import Table, trying

_BLOCK: Final = 16
# Of weights, enough to find no earlier layer's in the cache.
_ENOUGH_BYTES: Final = 1 << 30


class WholeLayers:
    """Layers of a model, and a step of so many rows, each with a short past."""

    def __init__(self, plan: TuningPlan, layers: Sequence[FusedLayer], rows: int) -> None:
        first = layers[0]
        linears = first.qkv, first.output, first.gate_up, first.down
        layer_bytes = sum(linear.weight.nbytes for linear in linears)
        self._layers = layers[: max(2, _ENOUGH_BYTES // layer_bytes)]
        heads, device = plan.heads, first.qkv.weight.device
        options: dict[str, Any] = {"device": device, "dtype": plan.dtype}
        self._x = torch.randn(rows, first.qkv.weight.shape[1], **options)
        self._cos_sin = torch.rand(rows, 2, heads.head_dim // 2, device=device)
        # All layers share it: the last token of each row is written anew by each.
        self._kv = torch.randn(rows, 2, heads.num_kv_heads, _BLOCK, heads.head_dim, **options)
        blocks = torch.arange(rows, dtype=torch.int32, device=device)
        self._attention = AttentionInputs(
            query_start_loc=torch.arange(rows + 1, dtype=torch.int32, device=device),
            seq_lens=torch.full((rows,), _BLOCK, dtype=torch.int32, device=device),
            block_table=blocks[:, None],
            slot_mapping=blocks.long() * _BLOCK + _BLOCK - 1,
            num_decode_rows=rows,
            max_query_len=1,
            max_seq_len=_BLOCK,
            max_decode_seq_len=_BLOCK,
        )

    def compare(self, before: Table, after: Table) -> tuple[float, float, float]:
        """Microseconds of a layer with either table, and how far apart the streams are behind the last."""
        before_us, wanted = self._measure(before)
        after_us, got = self._measure(after)
        return before_us, after_us, relative_error(got, wanted)

    def _measure(self, table: Table) -> tuple[float, torch.Tensor]:
        with trying(table):
            stream = self._run()
            return graph_us(self._run) / len(self._layers), stream

    def _run(self) -> torch.Tensor:
        stream, scaled = self._x.clone(), None
        for layer in self._layers:
            scaled = layer.apply(stream, scaled, self._cos_sin, self._kv, self._attention)
        return stream
