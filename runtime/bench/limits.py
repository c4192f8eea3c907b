"""The physical limit of a workload on the device at hand."""

import json
import subprocess
import sys
from dataclasses import dataclass

from pillion.messages.control import EngineGeometry
from pillion.runtime.errors import PillionError


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Rates that the device reaches when it does one thing only; measured, not from a data sheet."""

    device: str
    dtype: str
    read_bytes_per_s: float
    flop_per_s: float

    def step_s(self, geometry: EngineGeometry, num_tokens: int, kv_tokens: int) -> float:
        """The least time of one step over `num_tokens` tokens that attend to `kv_tokens` in all.

        The larger of reading weights and KV once, and of the weights' products at 2 FLOP a parameter
        and token.
        """
        kv_bytes = sum(
            group.block_bytes / group.block_size_tokens * kv_tokens for group in geometry.kv_groups
        )
        read_s = (geometry.step_read_bytes + kv_bytes) / self.read_bytes_per_s
        product_s = 2 * geometry.num_parameters * num_tokens / self.flop_per_s
        return max(read_s, product_s)


def measure_limits(geometry: EngineGeometry, threads: int | None) -> DeviceLimits:
    """Measures the device of a running engine, in a process of its own. Raises PillionError."""
    device = "cpu" if geometry.device.startswith("cpu") else geometry.device
    dtype = geometry.dtype if device != "cpu" else "float32"
    command = [sys.executable, "-P", "-m", "pillion.actors.gpu_worker.device_limits"]
    command += ["--device", device, "--dtype", dtype]
    if threads is not None:
        command += ["--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise PillionError(f"cannot measure the device: {done.stderr.strip().splitlines()[-1:]}")
    found = json.loads(done.stdout)
    return DeviceLimits(
        device=found["device"],
        dtype=found["dtype"],
        read_bytes_per_s=found["read_bytes_per_s"],
        flop_per_s=found["flop_per_s"],
    )
