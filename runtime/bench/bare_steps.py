"""What the engine's own steps take with nothing around them, measured in a process of its own."""

import subprocess
import sys
from collections.abc import Sequence

import msgspec

from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import locate_model
from pillion.runtime.errors import PillionError

# Loading, compiling every kernel for the first time, and the measurement.
_DEADLINE_S = 600.0


class BareStepTimes(msgspec.Struct, frozen=True):
    """Milliseconds, all repeats: of a graph's replay by batch, of a prefill by prompt length."""

    device: str
    replay_ms: dict[int, list[float]]
    prefill_ms: dict[int, list[float]]


def measure_bare_steps(
    config: EngineConfig,
    *,
    batches: Sequence[int] = (),
    num_input: int = 128,
    num_output: int = 512,
    prefills: Sequence[int] = (),
    repeats: int = 3,
    prefill_repeats: int = 3,
) -> BareStepTimes:
    """Steps of the engine that this configuration makes. Raises PillionError with the reason."""
    located = locate_model(config, progress=True)
    command = [sys.executable, "-P", "-m", "pillion.actors.gpu_worker.bare_steps"]
    command += ["--config", located.to_json().decode(), "--repeats", str(repeats)]
    command += ["--input-len", str(num_input), "--output-len", str(num_output)]
    command += ["--prefill-repeats", str(prefill_repeats)]
    command += ["--batch", *map(str, batches), "--prefill", *map(str, prefills)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise PillionError(f"cannot measure bare steps: {last[0]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=BareStepTimes, strict=False)
