"""Which form of a weight is fastest on this CPU, by number of rows: the table behind `AdaptiveLinear`.

    PYTHONPATH=src python benchmarks/cpu_linear.py [--threads 2] [--model-shape smollm2]

Times are milliseconds for all products of all layers, one decode step's worth, each the best of several
passes over distinct weights. Run it on a quiet machine and quote ratios.
"""

import argparse
import time
from collections.abc import Callable

import torch

from pillion.actors.gpu_worker.quantization.cpu_forms import (
    Bfloat16Linear,
    FourBitLinear,
    PackedLinear,
    works,
)
from pillion.actors.gpu_worker.quantization.linear import DenseLinear, Linear
from pillion.actors.gpu_worker.quantization.stored_tensor import FourBitWeight

# Layers, then [out, in] of the products of one: query-key-value, output, gate-up, down.
MODEL_SHAPES = {
    "smollm2": (30, [(960, 576), (576, 576), (3072, 576), (576, 1536)]),
    "qwen3-0.6b": (28, [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)]),
}
PASSES = 5
# A pass that would take longer than all others together says nothing more.
SLOWEST_S = 10.0


def four_bit(out_features: int, in_features: int) -> Linear:
    """A product with random 4-bit codes."""
    groups = (out_features, in_features // 32)
    codes = torch.randint(0, 16, (out_features, in_features), dtype=torch.uint8)
    return FourBitLinear(FourBitWeight(codes, torch.rand(groups), torch.randn(groups)))


def forms() -> dict[str, Callable[[int, int], Linear]]:
    """The forms that this machine can run; "float32" is torch's own product, to compare with."""
    found: dict[str, Callable[[int, int], Linear]] = {
        "float32": lambda n, k: DenseLinear(torch.randn(n, k)),
        "packed_float32": lambda n, k: PackedLinear(torch.randn(n, k)),
        "bfloat16": lambda n, k: Bfloat16Linear(torch.randn(n, k).bfloat16()),
        "packed_bfloat16": lambda n, k: PackedLinear(torch.randn(n, k).bfloat16()),
        "four_bit": four_bit,
    }
    if not works("packed_float32"):
        del found["packed_float32"]
    if not works("packed_bfloat16"):
        del found["packed_bfloat16"]
    return found


def seconds(products: list[tuple[Linear, int]], num_rows: int) -> float:
    """The fastest of several passes over all products."""
    inputs = {size: torch.rand(num_rows, size) for _, size in products}
    best = float("inf")
    for _ in range(PASSES):
        start = time.perf_counter()
        for linear, size in products:
            linear.apply(inputs[size])
        best = min(best, time.perf_counter() - start)
        if best > SLOWEST_S / PASSES:
            break
    return best


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--model-shape", choices=MODEL_SHAPES, default="smollm2")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 256, 1024])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    num_layers, shapes = MODEL_SHAPES[arguments.model_shape]

    table: dict[str, list[float]] = {}
    with torch.inference_mode():
        for name, make in forms().items():
            products = [(make(n, k), k) for _ in range(num_layers) for n, k in shapes]
            table[name] = [seconds(products, rows) for rows in arguments.rows]
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"{arguments.model_shape}, {arguments.threads} threads, {capability}; milliseconds")
    print(f"{'rows':>16s}" + "".join(f"{rows:>9d}" for rows in arguments.rows))
    for name, times in table.items():
        print(f"{name:>16s}" + "".join(f"{each * 1e3:9.1f}" for each in times))
    for index, rows in enumerate(arguments.rows):
        milliseconds, name = min((times[index], name) for name, times in table.items())
        ratio = table["float32"][index] / milliseconds
        print(f"{rows:5d} rows: {name} is {ratio:.1f} times as fast as torch's float32 product")


if __name__ == "__main__":
    main()
