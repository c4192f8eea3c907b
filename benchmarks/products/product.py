"""One product of a model with everything that it can be fused with: its forms, whether they are right, their times."""

from typing import Any, Final, NamedTuple

import torch

from pillion.actors.gpu_worker.tuning.timing import graph_us, relative_error
from pillion.kernels.fused_linear import composed, reference, tiles, triton_impl, wide_impl
from pillion.kernels.fused_linear.scaled import Scaled
from pillion.kernels.fused_linear.tiles import Kind, Tile, WideTile

EPS: Final = 1e-5
DEVICE = "cuda"
DTYPE = torch.bfloat16
PDL = True
# Weights that are read in turn: several times the cache.
_ROTATING_BYTES: Final = 192 << 20
# Columns that a part of a sum of squares is over.
_PART: Final = 64


class Shape(NamedTuple):
    """Sizes of a model."""

    hidden: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    num_layers: int
    vocab: int


SHAPES: Final = {
    "8b": Shape(4096, 32, 8, 128, 14336, 32, 128256),
    "1b": Shape(2048, 32, 8, 64, 8192, 16, 128256),
    "135m": Shape(576, 9, 3, 64, 1536, 30, 49152),
}
PRODUCTS: Final[dict[str, Kind]] = {
    "qkv": "qkv",
    "output": "add",
    "gated": "gated",
    "down": "add",
    "head": "head",
}


class Library(NamedTuple):
    """The library's product and separate launches, with the norm's or on a stream that is not divided yet."""

    scaled: bool


Form = Tile | WideTile | Library


def sizes(shape: Shape, name: str) -> tuple[int, int]:
    """Rows and columns of a product's weight."""
    heads = shape.num_q_heads + 2 * shape.num_kv_heads
    return {
        "qkv": (heads * shape.head_dim, shape.hidden),
        "output": (shape.hidden, shape.num_q_heads * shape.head_dim),
        "gated": (2 * shape.ffn, shape.hidden),
        "down": (shape.hidden, shape.ffn),
        "head": (shape.vocab, shape.hidden),
    }[name]


def form_today(shape: Shape, name: str, rows: int) -> Form:
    """What runs without this measurement."""
    return tiles.choose(PRODUCTS[name], *sizes(shape, name), rows) or Library(scaled=False)


def form_of_more(shape: Shape, name: str, rows: int) -> Form:
    """What runs with the next power of two of rows, which takes as many too."""
    return form_today(shape, name, 1 << (rows - 1).bit_length())


class Product:
    """A weight of a model, as often as it takes to miss the cache, and what goes in."""

    def __init__(self, shape: Shape, name: str, rows: int, *, copies: int | None = None) -> None:
        n, k = sizes(shape, name)
        self.name, self._shape, self.rows, self.n, self.k = name, shape, rows, n, k
        options: dict[str, Any] = {"device": DEVICE, "dtype": DTYPE}
        count = copies or max(2, _ROTATING_BYTES // (2 * n * k))
        self.weights = torch.randn(count, n, k, **options).mul_(k**-0.5)
        self.x = torch.randn(rows, k, **options)
        self.gain = torch.rand(k, **options) + 0.5
        self.next_gain = torch.rand(n, **options) + 0.5
        self.residual = torch.randn(rows, n, **options)
        self.cos_sin = torch.rand(rows, 2, shape.head_dim // 2, device=DEVICE)
        pool = (rows + 1, 2, shape.num_kv_heads, 16, shape.head_dim)
        self.kv = torch.zeros(pool, **options)
        self.slots = torch.arange(rows, device=DEVICE) * 16
        squares = self.x.float().square().view(rows, -1, _PART).sum(-1).T.contiguous()
        self.scaled = Scaled(wide_impl.scale(self.x, self.gain, pdl=PDL).x, squares)

    def run(self, form: Form, weight: torch.Tensor) -> torch.Tensor:
        """A new tensor; a sum also writes the residual, of which this is the scaled form, if there is one."""
        match self.name:
            case "qkv":
                return self._qkv(form, weight)
            case "gated":
                return self._gated(form, weight)
            case "head":
                return self._head(form, weight)
            case _:
                return self._add(form, weight)

    def _head(self, form: Form, weight: torch.Tensor) -> torch.Tensor:
        if isinstance(form, WideTile):
            return wide_impl.linear_float32(self.x, weight, None, form, pdl=PDL)
        if isinstance(form, Tile):
            return triton_impl.linear_float32(self.x, weight, pdl=PDL, tile=form)
        return composed.linear_float32(self.x, weight)

    def _qkv(self, form: Form, weight: torch.Tensor) -> torch.Tensor:
        rest = (EPS, weight, None, self.cos_sin, self.kv, self.slots, self._shape.num_q_heads)
        if isinstance(form, WideTile):
            return wide_impl.norm_qkv(self.scaled, *rest, form, pdl=PDL)
        if isinstance(form, Tile):
            return triton_impl.norm_qkv(self.x, self.gain, *rest, pdl=PDL, tile=form)
        return composed.norm_qkv(self.x, self.gain, *rest, self.scaled if form.scaled else None)

    def _gated(self, form: Form, weight: torch.Tensor) -> torch.Tensor:
        if isinstance(form, WideTile):
            return wide_impl.norm_gated_linear(self.scaled, EPS, weight, form, pdl=PDL)
        stream = (self.x, self.gain, EPS, weight)
        if isinstance(form, Tile):
            return triton_impl.norm_gated_linear(*stream, pdl=PDL, tile=form)
        return composed.norm_gated_linear(*stream, self.scaled if form.scaled else None)

    def _add(self, form: Form, weight: torch.Tensor) -> torch.Tensor:
        stream = (self.x, weight, None, self.residual)
        if isinstance(form, WideTile):
            made = wide_impl.linear_add(*stream, self.next_gain, form, pdl=PDL)
            assert made is not None
            return made.x
        if isinstance(form, Tile):
            triton_impl.linear_add(*stream, pdl=PDL, tile=form)
        else:
            composed.linear_add(*stream)
        return self.residual

    def microseconds(self, form: Form) -> float:
        """Median time of one product among its like."""
        self.run(form, self.weights[0])
        run = graph_us(lambda: [self.run(form, weight) for weight in self.weights])
        return run / len(self.weights)

    def scale_us(self) -> float:
        """Median time of what a stream needs that was not written with its norm."""
        count = 50
        return (
            graph_us(lambda: [wide_impl.scale(self.x, self.gain, pdl=PDL) for _ in range(count)])
            / count
        )

    def error(self, form: Form) -> float:
        """Of everything that the form writes; run twice, so that counters have to return to zero."""
        before = self.residual.clone()
        errors = []
        for _ in range(2):
            self.residual.copy_(before)
            self.kv.fill_(float("nan"))
            # What is free and comes next is not what was right last time.
            for width in (self.n, self.n // 2, self.n):
                torch.full((2 * self.rows, width), float("nan"), device=DEVICE)
            got = [self.run(form, self.weights[0])]
            if self.name == "qkv":
                got.append(self.kv[: self.rows, :, :, 0])
            if self.name in ("output", "down"):
                got.append(self.residual)
            wanted = self._wanted(before, has_scaled=isinstance(form, WideTile))
            errors += [relative_error(*pair) for pair in zip(got, wanted, strict=True)]
        self.residual.copy_(before)
        return max(errors)

    def _wanted(self, before: torch.Tensor, *, has_scaled: bool) -> list[torch.Tensor]:
        weight, x, gain = self.weights[0].float(), self.x.float(), self.gain.float()
        if self.name == "qkv":
            kv = torch.zeros_like(self.kv, dtype=torch.float32)
            rest = (EPS, weight, None, self.cos_sin, kv, self.slots, self._shape.num_q_heads)
            return [reference.norm_qkv(x, gain, *rest), kv[: self.rows, :, :, 0]]
        if self.name == "gated":
            return [reference.norm_gated_linear(x, gain, EPS, weight)]
        if self.name == "head":
            return [reference.linear_float32(x, weight)]
        out = before.float()
        reference.linear_add(x, weight, None, out)
        return [out * self.next_gain.float() if has_scaled else out, out]
