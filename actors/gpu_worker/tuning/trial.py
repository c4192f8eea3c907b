"""One product of a step, alone on the device: whether a form of it is right, and how long it takes."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import torch

from pillion.actors.gpu_worker.layers.fused_layer import FusedLayer
from pillion.actors.gpu_worker.models.transformer import Transformer
from pillion.actors.gpu_worker.quantization.linear import DenseLinear
from pillion.actors.gpu_worker.tuning.forms import Form
from pillion.actors.gpu_worker.tuning.plan import Product, TuningPlan
from pillion.actors.gpu_worker.tuning.timing import graph_us, relative_error
from pillion.kernels.fused_linear import (
    Scaled,
    linear_add,
    linear_float32,
    norm_gated_linear,
    norm_qkv,
)
from pillion.kernels.fused_linear.tiles import Choice, trying

_EPS: Final = 1e-5
# Launches of one measurement, at least and at most.
_FEWEST: Final = 8
_MOST: Final = 64
# Weights that are read in turn, in caches of the device.
_CACHES: Final = 3
# Columns that a part of a sum of squares is over.
_PART: Final = 64
_BLOCK: Final = 16
_LIBRARY: Final = Form(None, False)


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a product in some layers, and how layers are launched."""

    # [n, k] each
    each: Sequence[torch.Tensor]
    # [n] each
    biases: Sequence[torch.Tensor | None]
    pdl: bool

    @classmethod
    def of(cls, product: Product, model: Transformer) -> "Weights":
        """Those of a model with fused layers."""
        if product.name == "head":
            assert model.fused_head is not None
            return cls([model.fused_head], [None], pdl=False)
        linears = [_linear(layer, product.name) for layer in model.fused_layers]
        weights, biases = zip(*((linear.weight, linear.bias) for linear in linears), strict=True)
        return cls(weights, biases, model.fused_layers[0].pdl)

    def missing_the_cache(self, cache_bytes: int, model_bytes: int) -> "Weights":
        """As many, copies if need be, as are read in turn without finding each other's remains.

        A model that fits the cache finds its own.
        """
        size = self.each[0].nbytes
        wanted = min(_CACHES * cache_bytes, model_bytes)
        count = max(1, min(_MOST, -(-wanted // size)))
        copies = [self.each[0].clone() for _ in range(count - len(self.each))]
        repeats = -(-_FEWEST // count)
        each = [*self.each[:count], *copies] * repeats
        biases = [*self.biases[:count], *([self.biases[0]] * len(copies))] * repeats
        return Weights(each, biases, self.pdl)


def _linear(layer: FusedLayer, name: str) -> DenseLinear:
    match name:
        case "qkv":
            return layer.qkv
        case "output":
            return layer.output
        case "gated":
            return layer.gate_up
        case _:
            return layer.down


class Trial:
    """A product and what goes into it for so many rows."""

    def __init__(self, plan: TuningPlan, product: Product, rows: int, weights: Weights) -> None:
        _, kind, n, k, _ = product
        self._product, self._rows, self._weights = product, rows, weights
        heads = plan.heads
        self._num_q_heads = heads.num_q_heads
        device = weights.each[0].device
        options: dict[str, Any] = {"device": device, "dtype": plan.dtype}
        self._x = torch.randn(rows, k, **options)
        self._gain = torch.rand(k, **options) + 0.5
        squares = torch.zeros(-(-k // _PART), rows, device=device)
        squares[0] = self._x.float().square().sum(-1)
        self._scaled = Scaled(self._x * self._gain, squares)
        if kind == "qkv":
            self._cos_sin = torch.rand(rows, 2, heads.head_dim // 2, device=device)
            pool = (rows + 1, 2, heads.num_kv_heads, _BLOCK, heads.head_dim)
            self._kv = torch.zeros(pool, **options)
            self._slots = torch.arange(rows, device=device) * _BLOCK
        elif kind == "add":
            self._residual = torch.randn(rows, n, **options) * 0.1
            self._next_gain = torch.rand(n, **options) + 0.5
        elif kind == "head":
            self._logits = torch.empty(rows, n, device=device)

    def microseconds(self, form: Form) -> float:
        """Median time of one product among its like."""
        weights = self._weights

        def run() -> None:
            for weight, bias in zip(weights.each, weights.biases, strict=True):
                self._launch(form, weight, bias)

        with self._trying(form.choice):
            self._launch(form, weights.each[0], weights.biases[0])
            return graph_us(run) / len(weights.each)

    def error(self, form: Form) -> float:
        """Of all that a form writes, against the library's product; not finite if something is not written.

        Runs twice, so that what a launch leaves behind for the next has to be right.
        """
        wanted, _ = self._written(_LIBRARY)
        errors = []
        for _ in range(2):
            # What is free and comes next must not be what was right before.
            poison = [torch.full_like(tensor, math.nan) for tensor in wanted * 2]
            del poison
            got, made = self._written(form)
            errors += [relative_error(*pair) for pair in zip(got, wanted, strict=True)]
            if made is not None:
                stream = got[0].float()
                errors.append(relative_error(made.x, stream * self._next_gain.float()))
                errors.append(relative_error(made.squares.sum(0), stream.square().sum(-1)))
        return max(errors) if all(map(math.isfinite, errors)) else math.inf

    def _written(self, form: Form) -> tuple[list[torch.Tensor], Scaled | None]:
        """All tensors that a form writes; of a sum apart what it leaves for the norm behind it."""
        weight, bias = self._weights.each[0], self._weights.biases[0]
        with self._trying(form.choice):
            match self._product.kind:
                case "qkv":
                    self._kv = torch.full_like(self._kv, math.nan)
                    return [self._launch(form, weight, bias), self._kv[: self._rows, :, :, 0]], None
                case "add":
                    before = self._residual
                    self._residual = before.clone()
                    made = self._launch(form, weight, bias)
                    after, self._residual = self._residual, before
                    return [after], made
                case "head":
                    self._logits = torch.full_like(self._logits, math.nan)
            return [self._launch(form, weight, bias)], None

    def _trying(self, choice: Choice) -> AbstractContextManager[None]:
        _, kind, n, k, _ = self._product
        return trying({(kind, n, k): {self._rows: choice}})

    def _launch(self, form: Form, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        pdl, scaled = self._weights.pdl, self._scaled if form.scaled else None
        match self._product.kind:
            case "qkv":
                return norm_qkv(
                    self._x, self._gain, _EPS, weight, bias, self._cos_sin, self._kv, self._slots,
                    self._num_q_heads, scaled, pdl=pdl,
                )  # fmt: skip
            case "gated":
                return norm_gated_linear(self._x, self._gain, _EPS, weight, scaled, pdl=pdl)
            case "add":
                gain = self._next_gain if form.scaled else None
                return linear_add(self._x, weight, bias, self._residual, gain, pdl=pdl)
            case "head":
                return linear_float32(self._x, weight, self._logits)
