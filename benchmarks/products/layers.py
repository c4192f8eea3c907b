"""Whole layers of decode steps in one graph: what a table of tiles is worth where products follow each other."""

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import torch
from products.choice import Table
from products.product import DEVICE, DTYPE, EPS, PDL, Shape, graph_us, sizes

from pillion.actors.gpu_worker.layers.decoder_layer import (
    Attention,
    DecoderLayer,
    FeedForward,
    HeadShape,
)
from pillion.actors.gpu_worker.layers.fused_layer import FusedLayer
from pillion.actors.gpu_worker.quantization.linear import DenseLinear
from pillion.actors.gpu_worker.step_inputs import AttentionInputs
from pillion.kernels.fused_linear import tiles
from pillion.kernels.paged_attention import triton_decode

# Tokens in the cache: the middle of an answer of 512 tokens to 128.
_CONTEXT: Final = 384
_BLOCK: Final = 16
# Layers that miss the cache, at most.
_MOST_BYTES: Final = 4 << 30
_OF_A_LAYER: Final = ("qkv", "output", "gated", "down")


@contextlib.contextmanager
def settings(table: Table, *, early: bool) -> Iterator[None]:
    """Products take their tiles from a table; attention lets the launch behind it in from its start on, or does not."""
    before, best = tiles.MEASURED, triton_decode.best_setting

    def best_but_early(num_pairs: int, head_dim: int) -> triton_decode.Setting:
        return best(num_pairs, head_dim)._replace(early=early)

    tiles.MEASURED = table  # type: ignore[misc]
    triton_decode.best_setting = best_but_early
    try:
        yield
    finally:
        tiles.MEASURED = before  # type: ignore[misc]
        triton_decode.best_setting = best


class Layers:
    """Some layers of a model with random weights, and a step's rows."""

    def __init__(self, shape: Shape, rows: int, *, num_layers: int | None = None) -> None:
        layer_bytes = 2 * sum(n * k for n, k in (sizes(shape, name) for name in _OF_A_LAYER))
        most = max(2, min(shape.num_layers, _MOST_BYTES // layer_bytes))
        self._num_layers = num_layers or most
        layers = [_layer(shape) for _ in range(self._num_layers)]
        norms = [*(layer.attention_norm for layer in layers[1:]), layers[0].attention_norm]
        self._fused = []
        for layer, norm in zip(layers, norms, strict=True):
            fused = FusedLayer.of(layer, norm, pdl=PDL)
            assert fused is not None
            self._fused.append(fused)
        options: dict[str, Any] = {"device": DEVICE, "dtype": DTYPE}
        self._x = torch.randn(rows, shape.hidden, **options)
        self._cos_sin = torch.rand(rows, 2, shape.head_dim // 2, device=DEVICE)
        blocks = _CONTEXT // _BLOCK
        pool = (rows * blocks + 1, 2, shape.num_kv_heads, _BLOCK, shape.head_dim)
        self._kv = [torch.randn(pool, **options) for _ in layers]
        ids = torch.arange(rows * blocks, dtype=torch.int32, device=DEVICE).view(rows, blocks)
        self._attention = AttentionInputs(
            query_start_loc=torch.arange(rows + 1, dtype=torch.int32, device=DEVICE),
            seq_lens=torch.full((rows,), _CONTEXT, dtype=torch.int32, device=DEVICE),
            block_table=ids,
            slot_mapping=ids[:, -1].long() * _BLOCK + _BLOCK - 1,
            num_decode_rows=rows,
            max_query_len=1,
            max_seq_len=_CONTEXT,
            max_decode_seq_len=_CONTEXT,
        )

    @property
    def attention_early(self) -> bool:
        """Whether attention lets the launch behind it in from its start on, as things are."""
        _, _, num_kv_heads, _, head_dim = self._kv[0].shape
        return triton_decode.best_setting(len(self._x) * num_kv_heads, head_dim).early

    def run(self) -> torch.Tensor:
        """The stream behind the last layer."""
        stream, scaled = self._x.clone(), None
        for fused, kv in zip(self._fused, self._kv, strict=True):
            scaled = fused.apply(stream, scaled, self._cos_sin, kv, self._attention)
        return stream

    def measure(self, table: Table, *, early: bool, repeats: int = 5) -> tuple[float, torch.Tensor]:
        """Microseconds of a layer, and the stream."""
        with settings(table, early=early):
            stream = self.run()
            return graph_us(self.run, repeats) / self._num_layers, stream


def _layer(shape: Shape) -> DecoderLayer:
    def dense(name: str) -> DenseLinear:
        n, k = sizes(shape, name)
        weight = torch.randn(n, k, device=DEVICE, dtype=DTYPE).mul_(k**-0.5)
        return DenseLinear(weight)

    def gain() -> torch.Tensor:
        return torch.rand(shape.hidden, device=DEVICE, dtype=DTYPE) + 0.5

    heads = HeadShape(shape.num_q_heads, shape.num_kv_heads, shape.head_dim)
    attention = Attention(dense("qkv"), dense("output"), heads, None, None, EPS)
    return DecoderLayer(gain(), attention, gain(), FeedForward(dense("gated"), dense("down")), EPS)
