"""Times decode attention over tile sizes, warps, stages and splits, beside reading the keys and values once.

usage: tune_decode_attention.py [--rows 1,8,64,256] [--context 512] [--mixed]

Prints the best settings per head shape and number of rows with their share of the bandwidth.
"""

import argparse
import contextlib
import functools
import itertools
import multiprocessing
from typing import Any

import torch
from products.product import graph_us

from pillion.kernels.paged_attention.triton_decode import Setting, decode_attention

# query heads, KV heads, head size
SHAPES = {"135m": (9, 3, 64), "1b": (32, 8, 64), "8b": (32, 8, 128)}
BLOCK_SIZE = 16
LAYERS = 8
SPLITS = (1, 2, 4, 8, 16, 32)


class Layers:
    """A few layers' caches for so many rows of one length, or of lengths up to it."""

    def __init__(self, name: str, rows: int, context: int, *, mixed: bool) -> None:
        heads, kv_heads, dim = SHAPES[name]
        per_row = -(-context // BLOCK_SIZE)
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        self.kv = torch.randn(rows * per_row, LAYERS, 2, kv_heads, BLOCK_SIZE, dim, **options)
        self.table = torch.randperm(rows * per_row, device="cuda").int().view(rows, per_row)
        lengths = torch.full((rows,), context, dtype=torch.int32)
        if mixed:
            lengths = torch.linspace(context // 8, context, rows).int()
        self.num_tokens = int(lengths.sum())
        self.seq_lens = lengths.cuda()
        self.q = torch.randn(rows, heads, dim, **options)
        self.out = torch.empty_like(self.q)

    def run(self, setting: Setting) -> None:
        """Attention of each layer."""
        for layer in range(LAYERS):
            decode_attention(
                self.q, self.kv[:, layer], self.table, self.seq_lens, self.out,
                self.q.shape[-1] ** -0.5, None, setting=setting,
            )  # fmt: skip


def settings(pairs: int) -> list[Setting]:
    """Settings worth trying for so many pairs of a row and a KV head."""
    found = itertools.product(
        ((16, 1), (32, 1), (64, 1), (32, 2), (64, 2), (64, 4), (128, 4)), (2, 3, 4), SPLITS
    )
    return [
        Setting(block, warps, stages, splits)
        for (block, warps), stages, splits in found
        if pairs * splits <= 4096 and (splits == 1 or pairs * splits <= 2500)
    ]


def compile_all(job: tuple[str, int]) -> None:
    """Fills Triton's cache for the settings with so many splits, in a process of its own."""
    name, splits = job
    for setting in settings(1):
        if setting.splits == splits:
            with contextlib.suppress(Exception):  # needs more shared memory than there is
                Layers(name, 1, 512, mixed=False).run(setting)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1,8,64,256")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--mixed", action="store_true", help="lengths from an eighth of it up")
    parser.add_argument("--processes", type=int, default=14)
    a = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(a.processes) as pool:
        pool.map(compile_all, list(itertools.product(SHAPES, SPLITS)), chunksize=1)
    for name, rows in itertools.product(SHAPES, map(int, a.rows.split(","))):
        _, kv_heads, dim = SHAPES[name]
        layers = Layers(name, rows, a.context, mixed=a.mixed)
        times = []
        for setting in settings(rows * kv_heads):
            with contextlib.suppress(Exception):
                times.append((graph_us(functools.partial(layers.run, setting)) / LAYERS, setting))
        times.sort()
        read_us = layers.num_tokens * kv_heads * dim * 4 / 4.4e6
        best = ", ".join(f"{us:.2f} {tuple(setting)}" for us, setting in times[:6])
        print(f"{name} rows {rows}: {best}; reading alone {read_us:.2f} us", flush=True)


if __name__ == "__main__":
    main()
