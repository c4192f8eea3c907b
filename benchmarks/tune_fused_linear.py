"""Times every tile of the fused products for the shapes of a model, beside the library's product and launches.

usage: tune_fused_linear.py [--shapes 135m,1b,8b] [--products qkv,output,gated,down,head] [--rows 1,8,16,32,64]
                           [--processes 14]

Prints, per product and number of rows, the best tiles and what `kernels/fused_linear/tiles.py` should say: the
tile, or None where the composed form is faster. One layer's weights are repeated so often that they do not
fit the cache; times are medians of graph replays.
"""

import argparse
import itertools
import multiprocessing
import statistics
from collections.abc import Callable
from typing import Any

import torch

from pillion.kernels.fused_linear import composed, triton_impl
from pillion.kernels.fused_linear.tiles import Tile

# hidden, query heads, KV heads, head size, feed-forward size, vocabulary
SHAPES = {
    "135m": (576, 9, 3, 64, 1536, 49152),
    "1b": (2048, 32, 8, 64, 8192, 128256),
    "8b": (4096, 32, 8, 128, 14336, 128256),
}
PRODUCTS = ("qkv", "output", "gated", "down", "head")
CACHE_BYTES = 256 << 20
PARTS = 4  # of the compilation of one product, for as many processes


class Product:
    """One product of a model, with copies of its weight."""

    def __init__(self, shape: str, name: str, rows: int, *, copies: int | None = None) -> None:
        hidden, heads, kv_heads, self.dim, ffn, vocab = SHAPES[shape]
        n, k = {
            "qkv": ((heads + 2 * kv_heads) * self.dim, hidden),
            "output": (hidden, heads * self.dim),
            "gated": (2 * ffn, hidden),
            "down": (hidden, ffn),
            "head": (vocab, hidden),
        }[name]
        self.name, self.n, self.k, self.heads = name, n, k, heads
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        count = copies or max(1, CACHE_BYTES // (2 * n * k))
        self.weights = [torch.randn(n, k, **options) * k**-0.5 for _ in range(count)]
        self.x = torch.randn(rows, k, **options)
        self.gain = torch.rand(k, **options)
        self.residual = torch.randn(rows, n, **options)
        self.cos_sin = torch.rand(rows, 2, self.dim // 2, device="cuda")
        self.kv = torch.zeros(rows + 1, 2, kv_heads, 16, self.dim, **options)
        self.slots = torch.arange(rows, device="cuda") * 16

    def run(self, tile: Tile | None, weight: torch.Tensor) -> None:
        """With a tile, or composed."""
        module: Any = composed if tile is None else triton_impl
        options: dict[str, Any] = {} if tile is None else {"tile": tile}
        match self.name:
            case "qkv":
                module.norm_qkv(
                    self.x, self.gain, 1e-5, weight, None, self.cos_sin, self.kv, self.slots,
                    self.heads, **options,
                )  # fmt: skip
            case "gated":
                module.norm_gated_linear(self.x, self.gain, 1e-5, weight, **options)
            case "head":
                if tile is None:
                    composed.linear_float32(self.x, weight)
                else:
                    triton_impl.linear_float32(self.x, weight, **options)
            case _:
                module.linear_add(self.x, weight, None, self.residual, **options)

    def microseconds(self, tile: Tile | None) -> float:
        """Median time of one product."""
        return _graph_us(lambda: [self.run(tile, w) for w in self.weights]) / len(self.weights)


def tiles(product: Product, rows: int) -> list[Tile]:
    """Tiles worth trying."""
    if rows == 1:
        shapes = [
            (2, 1024),
            (4, 512),
            (4, 1024),
            (8, 256),
            (8, 512),
            (8, 1024),
            (16, 256),
            (32, 256),
        ]
        found = itertools.product(shapes, (2, 4, 8), (2, 4))
        return [Tile(n, k, warps, stages) for (n, k), warps, stages in found]
    if rows > 32:
        shapes = [(16, 128), (32, 64), (32, 128), (64, 64)]
        shapes += [(16, 64)] if product.k <= 1024 else [(64, 128), (128, 64)]
        found = itertools.product(shapes, (4,), (3, 4), (32, 64, 128))
    else:
        shapes = [(16, 128), (16, 256), (32, 64), (32, 128)]
        shapes += [(32, 256), (64, 64), (64, 128), (128, 64)]
        found = itertools.product(shapes, (2, 4, 8), (2, 4, 6), (rows,))
    weights = 2 if product.name in ("qkv", "gated") else 1
    fits = 220_000
    return [
        Tile(n, k, warps, stages, block_rows)
        for (n, k), warps, stages, block_rows in found
        if (weights * n + block_rows) * k * 2 * stages <= fits and block_rows <= rows
    ]


def _graph_us(run: Callable[[], object], repeats: int = 8) -> float:
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks)) * 1e3


def compile_some(job: tuple[str, str, int], part: int) -> None:
    """Fills Triton's cache for some tiles of one product, in a process of its own."""
    shape, name, rows = job
    product = Product(shape, name, rows, copies=1)
    for tile in tiles(product, rows)[part::PARTS]:
        try:
            product.run(tile, product.weights[0])
        except Exception as error:
            print(f"{job} {tile}: {error!r:.120}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default="135m,1b,8b")
    parser.add_argument("--products", default=",".join(PRODUCTS))
    parser.add_argument("--rows", default="1,8,16,32,64,128,256")
    parser.add_argument("--processes", type=int, default=14)
    a = parser.parse_args()
    rows_of = [int(rows) for rows in a.rows.split(",")]
    jobs = list(itertools.product(a.shapes.split(","), a.products.split(","), rows_of))
    with multiprocessing.get_context("spawn").Pool(a.processes) as pool:
        pool.starmap(compile_some, list(itertools.product(jobs, range(PARTS))), chunksize=1)
    for shape, name, rows in jobs:
        product = Product(shape, name, rows)
        times = []
        for tile in tiles(product, rows):
            try:
                times.append((product.microseconds(tile), tile))
            except Exception:  # compiled for too much shared memory: said above
                continue
        times.sort()
        library_us = product.microseconds(None)
        best_us, best = times[0]
        choice = tuple(best) if best_us < library_us else None
        print(
            f"{shape} {name} ({product.n}, {product.k}) rows {rows}: {best_us:.2f} us {tuple(best)},"
            f" composed {library_us:.2f} us -> {choice}",
            flush=True,
        )


if __name__ == "__main__":
    main()
