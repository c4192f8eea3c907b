"""Times of captured launches, and how far results are apart."""

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import torch

_BUSY_S: Final = 0.1


def raise_clocks(device: torch.device) -> None:
    """Keeps a CUDA device busy: one that was idle takes a moment to run at full speed."""
    factor = torch.ones(4096, 4096, dtype=torch.float16, device=device)
    deadline = time.monotonic() + _BUSY_S
    while time.monotonic() < deadline:
        for _ in range(10):
            torch.mm(factor, factor)
        torch.cuda.synchronize(device)


def graph_us(run: Callable[[], object], repeats: int = 5) -> float:
    """Median time of a captured run in microseconds. Its kernels must have run before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    marks: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]  # type: ignore[no-untyped-call]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    times: list[float] = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return statistics.median(times) * 1e3


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """In the Euclidean norm; NaN if something was not written."""
    want = want.float()
    return float((got.float() - want).norm() / want.norm())
