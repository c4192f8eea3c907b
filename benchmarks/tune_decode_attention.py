"""Times decode attention over tile sizes, warps, stages and splits, beside reading the keys and values once.

usage: tune_decode_attention.py [--rows 1,8,64,256] [--context 384]

Prints the best settings per head shape and number of rows with their share of the bandwidth.
"""

import argparse
import itertools
import statistics
from typing import Any

import torch

from pillion.kernels.paged_attention.triton_decode import Setting, decode_attention

# query heads, KV heads, head size
SHAPES = {"135m": (9, 3, 64), "1b": (32, 8, 64), "8b": (32, 8, 128)}
BLOCK_SIZE = 16
LAYERS = 8


def median_us(run: Any, repeats: int = 10) -> float:
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1,8,64,256")
    parser.add_argument("--context", type=int, default=384)
    a = parser.parse_args()
    settings = [
        Setting(block, warps, stages, splits)
        for block, warps, stages in itertools.product((32, 64, 128), (2, 4, 8), (2, 3))
        for splits in (1, 2, 4, 8, 16)
        if block // warps >= 8
    ]
    for name, rows in itertools.product(SHAPES, map(int, a.rows.split(","))):
        heads, kv_heads, dim = SHAPES[name]
        per_row = -(-a.context // BLOCK_SIZE)
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        kv = torch.randn(rows * per_row, LAYERS, 2, kv_heads, BLOCK_SIZE, dim, **options)
        table = torch.randperm(rows * per_row, device="cuda").int().view(rows, per_row)
        seq_lens = torch.full((rows,), a.context, device="cuda", dtype=torch.int32)
        q = torch.randn(rows, heads, dim, **options)
        out = torch.empty_like(q)
        times = []
        for setting in settings:
            if rows * kv_heads * setting.splits > 1024:
                continue

            def layers(
                setting: Setting = setting,
                kv: Any = kv,
                rest: Any = (table, seq_lens, out),
                q: Any = q,
            ) -> None:
                for layer in range(LAYERS):
                    decode_attention(
                        q, kv[:, layer], *rest, q.shape[-1] ** -0.5, None, setting=setting
                    )

            try:
                times.append((median_us(layers) / LAYERS, setting))
            except Exception as error:
                print(name, rows, setting, repr(error)[:100], flush=True)
        times.sort()
        read_us = rows * a.context * kv_heads * dim * 4 / 4.4e6
        best = ", ".join(f"{us:.2f} {tuple(setting)}" for us, setting in times[:4])
        print(f"{name} rows {rows}: {best}; reading alone {read_us:.2f} us", flush=True)


if __name__ == "__main__":
    main()
