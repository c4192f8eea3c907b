"""What a device can do at most, by measurement: memory bandwidth and the rate of matrix products.

Run as a module it prints one line of JSON, so that the command line needs no torch of its own.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

_READ_BYTES = {"cpu": 512 << 20, "cuda": 4 << 30}
_PRODUCT_SIZE = {"cpu": 2048, "cuda": 8192}
_REPEATS = 7


def measure(device: str, dtype: torch.dtype) -> dict[str, Any]:
    """Bytes per second of reading, and FLOP per second of a square product in `dtype`; medians."""
    kind = device.partition(":")[0]
    data = torch.rand(_READ_BYTES[kind] // 4, device=device)
    size = _PRODUCT_SIZE[kind]
    left = torch.randn(size, size, device=device).to(dtype)
    right = torch.randn(size, size, device=device).to(dtype)
    read_s = _seconds(device, lambda: data.max())
    product_s = _seconds(device, lambda: left @ right)
    name = torch.cuda.get_device_name(device) if kind == "cuda" else "CPU"
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "dtype": str(dtype).removeprefix("torch."),
        "read_bytes_per_s": data.numel() * 4 / read_s,
        "flop_per_s": 2 * size**3 / product_s,
    }


def _seconds(device: str, run: Callable[[], object]) -> float:
    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)

    run()
    wait()
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Prints the limits of `--device` in `--dtype`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    print(json.dumps(measure(arguments.device, getattr(torch, arguments.dtype))))


if __name__ == "__main__":
    main()
