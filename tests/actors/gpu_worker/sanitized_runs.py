"""What runs under compute-sanitizer: kernels, captured steps of a tiny model, or a planted error.

usage: compute-sanitizer ... python sanitized_runs.py kernels|steps|planted FOLDER SECONDS

`kernels` goes round the tests of the Triton kernels until the seconds are over, one case of each at a time. It is
meant for PYTORCH_NO_CUDA_MEMORY_CACHING=1: each tensor then is an allocation of its own, whose end the tool knows.
"""

import contextlib
import inspect
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import test_triton as kernel_tests
import test_triton_sampling as sampling_tests
import test_triton_wide as wide_tests
import torch
import triton
import triton.language as tl
from tiny_worker import TinyWorker, tiny_config

from pillion.actors.gpu_worker import cuda_graphs, start_up
from pillion.actors.gpu_worker.warm_up import EVERYTHING, GREEDY

DEVICE = torch.device("cuda", 0)

Run = Callable[[], None]


def kernels(end: float) -> int:
    """Returns how many cases were run, of each kernel at least one."""
    num_run = 0
    for round_of_cases in itertools.zip_longest(*_cases()):
        for run in filter(None, round_of_cases):
            if num_run >= len(_kernel_tests()) and time.monotonic() > end:
                return num_run
            torch.manual_seed(0)
            with contextlib.suppress(pytest.skip.Exception):
                run()
            num_run += 1
    return num_run


def _kernel_tests() -> list[Callable[..., None]]:
    """All that need nothing of pytest but the device and their cases."""
    modules = kernel_tests, sampling_tests, wide_tests
    tests = [item for module in modules for item in vars(module).items()]
    return [
        test for name, test in tests if name.startswith("test_") and not _others(test, _marks(test))
    ]


def _marks(test: Callable[..., None]) -> list[tuple[Sequence[str], Sequence[Any]]]:
    """The names and values of the test's cases."""
    marks = [mark.args for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    return [
        ((names,), [(value,) for value in values]) if isinstance(names, str) else (names, values)
        for names, values in marks
    ]


def _others(
    test: Callable[..., None], marks: list[tuple[Sequence[str], Sequence[Any]]]
) -> set[str]:
    """What else the test wants."""
    known = {"device", "dtype", *(name for names, _ in marks for name in names)}
    return set(inspect.signature(test).parameters) - known


def _cases() -> Iterator[Iterator[Run]]:
    """The cases of each kernel's test, as pytest would run them on the device."""
    for test in _kernel_tests():
        wanted = inspect.signature(test).parameters
        fixed = {"device": DEVICE, "dtype": torch.bfloat16}
        fixed = {name: value for name, value in fixed.items() if name in wanted}
        marks = _marks(test)
        yield iter(
            [
                partial(
                    test,
                    **fixed,
                    **{
                        name: value
                        for (names, _), row in zip(marks, rows, strict=True)
                        for name, value in zip(names, row, strict=True)
                    },
                )
                for rows in itertools.product(*(values for _, values in marks))
            ]
        )


def steps(folder: Path) -> int:
    """A start, with its largest step and little captured, then steps of every kind, and captures behind replays.

    Returns how many steps.
    """
    config = tiny_config(
        folder, str(DEVICE), dtype="bfloat16", max_num_batched_tokens=256, tuning_seconds=0.0
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start_up, "has_compiled", lambda _: True)
        patch.setattr(cuda_graphs, "_FIRST_ROWS", 1)
        patch.setattr(cuda_graphs, "_FIRST_TOKENS", 0)
        rig = TinyWorker.start(config)
    assert rig.worker.gauges["graphs"] == 1
    prompts = [[7] * 40, [3, 4, 5], [8] * 17]
    samplings = [GREEDY, EVERYTHING, GREEDY]
    for turn in range(2):
        new = [
            rig.new(slot, tokens, sampling)
            for slot, (tokens, sampling) in enumerate(zip(prompts, samplings, strict=True))
        ]
        rig.run([(0, 0, 24)], new, repeat=1)
        rig.run([(0, 24, 40), (1, 0, 3)], repeat=3)
        rig.run([(0,), (1,), (2, 0, 17)], repeat=6)
        rig.run([], released=range(3))
        rig.generation = turn + 1
        rig.idle()
    assert rig.worker.gauges["graphs_left"] == 0
    assert all(output.failure is None for output in rig.outputs)
    return len(rig.outputs)


@triton.jit
def _write_behind(x, n, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(x + n + tl.arange(0, SIZE), tl.zeros([SIZE], tl.int32))


def planted() -> int:
    """Writes behind a tensor's end."""
    x = torch.zeros(1024, dtype=torch.int32, device=DEVICE)
    _write_behind[(1,)](x, len(x), SIZE=1024)
    return 1


def main() -> None:
    what, folder, seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    end = time.monotonic() + seconds
    with torch.inference_mode():
        match what:
            case "kernels":
                num_run = kernels(end)
            case "steps":
                num_run = steps(folder)
            case _:
                num_run = planted()
    torch.cuda.synchronize()
    print(f"{what}: {num_run} run", flush=True)


if __name__ == "__main__":
    main()
