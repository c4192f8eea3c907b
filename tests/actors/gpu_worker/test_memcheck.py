"""No kernel reads or writes outside its tensors, says compute-sanitizer's memcheck, where that tool is there."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from pillion.runtime.process import child_environment

HERE = Path(__file__).parent
SCRIPT = HERE / "sanitized_runs.py"
KERNELS_S = 30.0
TIMEOUT_S = 150.0
OPTIONS = [
    "--tool=memcheck",
    "--target-processes=all",
    "--error-exitcode=86",
    # Calls that libraries try and that may fail are no errors of ours.
    "--report-api-errors=no",
    "--print-limit=20",
]


def compute_sanitizer() -> str | None:
    """Where the tool is; None if nowhere."""
    if found := shutil.which("compute-sanitizer"):
        return found
    folders = sorted(Path("/usr/local").glob("cuda*/bin"), reverse=True)
    wheels = importlib.util.find_spec("nvidia")
    for base in (wheels.submodule_search_locations or []) if wheels else []:
        folders += [path.parent for path in Path(base).rglob("compute-sanitizer")]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(map(str, folders)))


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(compute_sanitizer() is None, reason="needs compute-sanitizer"),
]


@dataclass
class Checked:
    """A run under the tool."""

    process: "subprocess.Popen[str]"
    output: str = ""

    def wait(self, timeout_s: float) -> None:
        try:
            self.output = self.process.communicate(timeout=timeout_s)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.output = self.process.communicate()[0]
            pytest.fail(f"not done after {TIMEOUT_S:.0f} s:\n{self.output[-3000:]}")


def start(what: str, folder: Path) -> Checked:
    environment = child_environment()
    if what != "steps":  # a captured step needs the caching allocator
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    paths = [HERE / "models", HERE.parents[1] / "kernels"]
    environment["PYTHONPATH"] = os.pathsep.join(
        [*map(str, paths), environment.get("PYTHONPATH", "")]
    )
    tool = compute_sanitizer()
    assert tool is not None
    script = [sys.executable, "-P", str(SCRIPT), what, str(folder), str(KERNELS_S)]
    process = subprocess.Popen(
        [tool, *OPTIONS, *script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    return Checked(process)


def test_kernels_and_captured_steps_stay_inside_their_tensors(tmp_path: Path) -> None:
    runs = {what: start(what, tmp_path) for what in ("planted", "kernels", "steps")}
    deadline = time.monotonic() + TIMEOUT_S
    try:
        for run in runs.values():
            run.wait(deadline - time.monotonic())
    finally:
        for run in runs.values():
            if run.process.poll() is None:
                run.process.kill()
    planted = runs.pop("planted")
    if "Invalid __global__ write" not in planted.output and "not supported" in planted.output:
        pytest.skip("compute-sanitizer does not support this machine's device")
    assert "Invalid __global__ write" in planted.output, planted.output[-3000:]
    assert planted.process.returncode != 0
    for what, run in runs.items():
        assert run.process.returncode == 0, run.output[-3000:]
        assert "ERROR SUMMARY: 0 errors" in run.output
        print(next(line for line in run.output.splitlines() if line.startswith(f"{what}: ")))
