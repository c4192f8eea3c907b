"""Times attention of one long prompt over tiles, warps and stages, beside what torch has for dense keys and values.

usage: tune_prefill_attention.py [--lengths 2048,8192]

Prints microseconds and TFLOP/s per head shape; causal attention of n tokens counts 2 n^2 FLOP per element of a query.
"""

import argparse
import contextlib
import itertools
import multiprocessing
from typing import Any

import torch
import triton
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from pillion.kernels.paged_attention import PrefillTiles, cut_queries
from pillion.kernels.paged_attention import triton_prefill as ours

# query heads, KV heads, head size
SHAPES = {"135m": (9, 3, 64), "1b": (32, 8, 64), "8b": (32, 8, 128)}
BLOCK_SIZE = 16
LAYERS = 4
# queries and keys of a tile, warps, loads in flight
SETTINGS = (
    (64, 64, 4, 3), (128, 32, 4, 4), (128, 64, 4, 2), (128, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3),
    (128, 64, 8, 4), (128, 128, 4, 2), (128, 128, 8, 2), (128, 128, 8, 3),
)  # fmt: skip


def median_us(run: Any) -> float:
    return float(triton.testing.do_bench(run, warmup=5, rep=25, return_mode="median")) * 1e3


class Prompt:
    """Queries, a paged cache and the same keys and values dense."""

    def __init__(self, name: str, length: int) -> None:
        heads, kv_heads, dim = SHAPES[name]
        blocks = length // BLOCK_SIZE
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        self.kv = torch.randn(blocks, LAYERS, 2, kv_heads, BLOCK_SIZE, dim, **options)
        self.table = torch.randperm(blocks, device="cuda").int()[None]
        self.q = torch.randn(length, heads, dim, **options)
        self.out = torch.empty_like(self.q)
        self.flop = 2 * length**2 * heads * dim

    def tiles(self, block_m: int) -> PrefillTiles:
        length = len(self.q)
        rows, starts = (torch.from_numpy(x).cuda() for x in cut_queries([length], 0, block_m))
        return PrefillTiles(rows, starts, torch.tensor([length]).int().cuda(), block_m)

    def dense(self) -> tuple[torch.Tensor, ...]:
        """What torch wants, gathered from the cache: [1, heads, length, dim] each."""
        kv = self.kv[:, 0].index_select(0, self.table[0])
        k, v = kv.permute(1, 2, 0, 3, 4).reshape(2, kv.shape[2], -1, kv.shape[4])[:, None]
        return self.q.transpose(0, 1)[None], k, v


def torch_backends(prompt: Prompt) -> None:
    q, k, v = prompt.dense()
    expected = None
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        try:
            with sdpa_kernel(backend):

                def run() -> torch.Tensor:
                    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

                expected = run()
                us = median_us(run)
            print(
                f"  {backend.name:16} {us:8.1f} us {prompt.flop / us / 1e6:6.0f} TFLOP/s",
                flush=True,
            )
        except RuntimeError as error:
            print(f"  {backend.name}: {str(error).splitlines()[0]}")
    print(f"  gather           {median_us(prompt.dense):8.1f} us")
    run_ours(prompt, ours.best_setting(prompt.q.shape[2], 128))
    if expected is not None:
        error = (prompt.out - expected[0].transpose(0, 1)).norm() / expected.norm()
        print(f"  ours differs by {error:.1e}")


def run_ours(prompt: Prompt, setting: ours.Setting) -> float:
    starts = torch.tensor([0, len(prompt.q)]).int().cuda()
    tiles = prompt.tiles(setting.block_queries)
    return median_us(
        lambda: ours.prefill_attention(
            prompt.q, prompt.kv[:, 0], prompt.table, starts, tiles, prompt.out,
            prompt.q.shape[2] ** -0.5, None, setting,
        )
    )  # fmt: skip


def compile_one(job: tuple[str, tuple[int, int, int, int]]) -> None:
    """Fills Triton's cache, in a process of its own."""
    name, numbers = job
    with contextlib.suppress(Exception):  # needs more shared memory than there is
        run_ours(Prompt(name, 256), ours.Setting(*numbers))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", default="8192")
    parser.add_argument("--shapes", default="8b,1b,135m")
    parser.add_argument("--processes", type=int, default=14)
    a = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(a.processes) as pool:
        pool.map(compile_one, list(itertools.product(a.shapes.split(","), SETTINGS)), chunksize=1)
    for name, length in itertools.product(a.shapes.split(","), map(int, a.lengths.split(","))):
        prompt = Prompt(name, length)
        print(f"{name}, {length} tokens", flush=True)
        torch_backends(prompt)
        found = []
        for numbers in SETTINGS:
            setting = ours.Setting(*numbers)
            with contextlib.suppress(Exception):  # needs more shared memory than there is
                found.append((run_ours(prompt, setting), setting))
        for us, setting in sorted(found)[:5]:
            print(f"  {tuple(setting)!s:16} {us:8.1f} us {prompt.flop / us / 1e6:6.0f} TFLOP/s")


if __name__ == "__main__":
    main()
