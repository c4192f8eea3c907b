"""Has the kernels of a first start compiled by several processes while this one imports and loads.

Triton compiles one variant after the other, and a start needs dozens. Whoever finds its cache without them for
this model starts processes that capture the same steps with one layer and random weights: what they compile is
on disk when the worker asks for it. Nothing here imports torch, so that they start first.
"""

import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import structs

import pillion
from pillion.actors.gpu_worker.head_start import DRIVER
from pillion.actors.gpu_worker.host_memory import free_memory_bytes
from pillion.runtime.config import EngineConfig
from pillion.runtime.process import child_environment

_FEWEST_CORES: Final = 4
_MOST_PROCESSES: Final = 16
# There are no steps to capture; see compile_part.
_MOST_IF_BATCH_INVARIANT: Final = 2
# What one of them takes of the machine's memory.
_PROCESS_BYTES: Final = 2 << 30
_TIMEOUT_S: Final = 120.0

logger = logging.getLogger(__name__)


class Compilation:
    """Processes that compile, and the mark that a later start finds."""

    def __init__(self, processes: Sequence["subprocess.Popen[bytes]"], mark: Path) -> None:
        self._processes = processes
        self._mark = mark

    def wait(self) -> None:
        """Until all have ended. What they did not compile is compiled when it is needed."""
        deadline = time.monotonic() + _TIMEOUT_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
        failed = sum(process.returncode != 0 for process in self._processes)
        if failed:
            logger.warning("%d of %d processes compiled no kernels", failed, len(self._processes))
            return
        self._mark.parent.mkdir(parents=True, exist_ok=True)
        self._mark.touch()


def compile_ahead(config: EngineConfig) -> Compilation | None:
    """Starts the processes; None where nothing is to be compiled, or not by others."""
    num_cores = len(os.sched_getaffinity(0))
    has_device = config.device != "cpu" and DRIVER.exists()
    if not has_device or num_cores < _FEWEST_CORES or importlib.util.find_spec("triton") is None:
        return None
    mark = _cache_dir() / f"pillion-{_fingerprint(config)}"
    if mark.exists():
        return None
    # One core is for the process that loads.
    most = _MOST_IF_BATCH_INVARIANT if config.batch_invariant else _MOST_PROCESSES
    num_parts = min(most, num_cores - 1, free_memory_bytes() // _PROCESS_BYTES)
    if not num_parts:
        return None
    command = [sys.executable, "-P", "-m", "pillion.actors.gpu_worker.compile_process"]
    shown = structs.replace(config, api_key=None)  # command lines are for everybody to read
    command += [shown.to_json().decode(), str(num_parts)]
    processes = [
        # Our end of the pipe is the process's lifeline: it closes with us.
        subprocess.Popen(
            [*command, str(part)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
        )
        for part in range(num_parts)
    ]
    return Compilation(processes, mark)


def _cache_dir() -> Path:
    """Triton's own cache: whoever empties it takes the marks along."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")


def _fingerprint(config: EngineConfig) -> str:
    """Of everything that decides which variants there are: settings, kernels and compiler."""
    digest = hashlib.sha256()
    settings = (
        config.model_path or config.model,
        config.dtype,
        config.max_model_len,
        config.max_num_seqs,
        config.max_num_batched_tokens,
        config.block_size,
        config.batch_invariant,
        sys.version,
        importlib.metadata.version("triton"),
    )
    digest.update(repr(settings).encode())
    home = Path(pillion.__file__).parent
    for folder in ("kernels", "actors/gpu_worker"):
        for source in sorted((home / folder).resolve().rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
