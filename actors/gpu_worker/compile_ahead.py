"""Has the kernels of a first start compiled by several processes while this one imports and loads.

Triton compiles one variant after the other, and a start needs dozens. Whoever finds its cache without them for
this model starts processes that capture the same steps with one layer and random weights: what they compile is
on disk when the worker asks for it. Then they check the candidates of a tuning, if there is one to come (see
tuning/start.py). Nothing here imports torch, so that they start first.
"""

import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import selectors
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
_CARDS: Final = Path("/proc/driver/nvidia/gpus")
# There are no steps to capture; see compile_part.
_MOST_IF_BATCH_INVARIANT: Final = 2
# What one of them takes of the machine's memory.
_PROCESS_BYTES: Final = 2 << 30
_TIMEOUT_S: Final = 120.0
# What a process may have begun when its time to tune is up.
_GRACE_S: Final = 2.0
# Of the time of a tuning, for compiling and checking; the rest is for measuring.
COMPILING_SHARE: Final = 0.75
# A line of what a process says: all that a start needs is compiled.
COMPILED: Final = "compiled"

logger = logging.getLogger(__name__)


class Compilation:
    """Processes that compile, and the mark that a later start finds."""

    def __init__(
        self,
        processes: Sequence["subprocess.Popen[bytes]"],
        mark: Path | None,
        tuning_seconds: float = 0.0,
    ) -> None:
        self._processes = processes
        self._mark = mark
        self._tuning_seconds = tuning_seconds
        self._heard: dict[int, bytes] = {process.pid: b"" for process in processes}

    def wait(self) -> list[str]:
        """Until all have ended; what they say of the candidates of a tuning.

        What they did not compile is compiled when it is needed.
        """
        self._listen()
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        failed = len(self._processes) - self._num_compiled()
        if failed:
            logger.warning("%d of %d processes compiled no kernels", failed, len(self._processes))
        elif self._mark is not None:
            self._mark.parent.mkdir(parents=True, exist_ok=True)
            self._mark.touch()
        said = (heard.decode(errors="replace").splitlines() for heard in self._heard.values())
        return [line for lines in said for line in lines if line != COMPILED]

    def _listen(self) -> None:
        """Until all have ended, or time is up: a tuning has its own from when all else is compiled."""
        deadline = time.monotonic() + _TIMEOUT_S
        is_tuning = False
        with selectors.DefaultSelector() as selector:
            for process in self._processes:
                if process.stdout is not None:
                    selector.register(process.stdout, selectors.EVENT_READ, process.pid)
            while selector.get_map() and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    data = os.read(key.fd, 1 << 16)
                    self._heard[key.data] += data
                    if not data:
                        selector.unregister(key.fileobj)
                if not is_tuning and self._have_compiled(selector):
                    is_tuning = True
                    seconds = COMPILING_SHARE * self._tuning_seconds + _GRACE_S
                    deadline = time.monotonic() + seconds

    def _have_compiled(self, selector: selectors.BaseSelector) -> bool:
        """Whether all that still run have."""
        return all(self._has_compiled(key.data) for key in selector.get_map().values())

    def _num_compiled(self) -> int:
        return sum(map(self._has_compiled, self._heard))

    def _has_compiled(self, pid: int) -> bool:
        return f"{COMPILED}\n".encode() in self._heard[pid]


def compile_ahead(config: EngineConfig) -> Compilation | None:
    """Starts the processes; None where nothing is to be compiled, or not by others."""
    if not _has_device(config) or len(os.sched_getaffinity(0)) < _FEWEST_CORES:
        return None
    return None if has_compiled(config) else _start(config, _mark(config))


def has_compiled(config: EngineConfig) -> bool:
    """Whether the processes of an earlier start have compiled all that this one needs."""
    return _mark(config).exists()


def check_ahead(config: EngineConfig) -> Compilation | None:
    """Starts processes that only check the candidates of a tuning; None where there can't be any."""
    return _start(config, None) if _has_device(config) else None


def _has_device(config: EngineConfig) -> bool:
    has_driver = config.device != "cpu" and DRIVER.exists()
    return has_driver and importlib.util.find_spec("triton") is not None


def _start(config: EngineConfig, mark: Path | None) -> Compilation | None:
    # One core is for the process that loads.
    num_cores = max(2, len(os.sched_getaffinity(0)))
    most = _MOST_IF_BATCH_INVARIANT if config.batch_invariant else _MOST_PROCESSES
    num_parts = min(most, num_cores - 1, free_memory_bytes() // _PROCESS_BYTES)
    if not num_parts:
        return None
    command = [sys.executable, "-P", "-m", "pillion.actors.gpu_worker.compile_process"]
    shown = structs.replace(config, api_key=None)  # command lines are for everybody to read
    what = "tuning" if mark is None else "all"
    command += [shown.to_json().decode(), what, str(num_parts)]
    processes = [
        # Our end of the pipe is the process's lifeline: it closes with us.
        subprocess.Popen(
            [*command, str(part)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
        )
        for part in range(num_parts)
    ]
    return Compilation(processes, mark, config.tuning_seconds)


def _mark(config: EngineConfig) -> Path:
    return _cache_dir() / f"pillion-{_fingerprint(config)}"


def _cache_dir() -> Path:
    """Triton's own cache: whoever empties it takes the marks along."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")


def _fingerprint(config: EngineConfig) -> str:
    """Of everything that decides which variants there are: model, cards, settings, kernels and compiler."""
    digest = hashlib.sha256()
    settings = (
        _model(config),
        _cards(),
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


def _model(config: EngineConfig) -> str:
    """What the model's directory says of its shape; of a file, which one it is."""
    path = Path(config.model_path or config.model)
    description = path / "config.json"
    return description.read_text(errors="replace") if description.is_file() else str(path)


def _cards() -> list[str]:
    """Names of the machine's cards, as the driver has them; none where it does not show any."""
    lines = [
        line
        for card in sorted(_CARDS.glob("*/information"))
        for line in card.read_text().splitlines()
    ]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
