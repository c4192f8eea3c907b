"""What can go wrong on a machine before a daemon starts on it: looked at without starting one."""

import importlib.metadata
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from pillion.messages.control import DaemonStatus, StatusRequest
from pillion.runtime import packaged_models
from pillion.runtime.control_socket import ControlClient
from pillion.runtime.errors import ConfigError, PillionError
from pillion.runtime.open_files import LEAST_OPEN_FILES
from pillion.runtime.paths import RunDir, daemon_pid, runtime_root
from pillion.runtime.proc_files import is_stopped

GIB: Final = 1024**3
# Distributions and their least versions, as pyproject.toml has them.
REQUIRED: Final = {
    "huggingface_hub": "0.30",
    "jinja2": "3.1",
    "llguidance": "1.7",
    "msgspec": "0.19",
    "numpy": "1.26",
    "pyzmq": "26",
    "tokenizers": "0.21",
    "torch": "2.11",
    "tqdm": "4.66",
    "transformers": "5",
    "uvloop": "0.21",
}
_LEAST_SHM_BYTES: Final = 64 * 1024**2
_LEAST_FREE_DISK_BYTES: Final = GIB
_LEAST_MEMORY_BYTES: Final = 2 * GIB
_LEAST_DESCRIPTORS: Final = 1024
_CUDA_DEADLINE_S: Final = 120.0
_CUDA_QUESTION: Final = (
    "import torch; print(torch.cuda.is_available(), [torch.cuda.get_device_name(i)"
    " for i in range(torch.cuda.device_count())])"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check saw. "broken" keeps Pillion from working, "warning" keeps it from working well."""

    check: str
    state: Literal["ok", "warning", "broken"]
    detail: str
    advice: str = ""


def check_machine() -> Iterator[Finding]:
    """All findings, in the order in which a person reads them."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        check_python,
        check_packages,
        check_cuda,
        check_run_directory,
        check_shared_memory,
        check_memory,
        check_descriptors,
        check_model_cache,
        check_daemons,
    )
    for check in checks:
        try:
            yield from check()
        except OSError as error:
            name = check.__name__.removeprefix("check_").replace("_", " ")
            yield Finding(name, "broken", f"cannot be looked at: {error}")


def check_python() -> Iterator[Finding]:
    """The interpreter and the operating system."""
    version = ".".join(map(str, sys.version_info[:3]))
    detail = f"{version} at {sys.executable}"
    if sys.platform != "linux":
        yield Finding("python", "broken", f"{detail} on {sys.platform}", "Pillion runs on Linux")
    elif sys.maxsize < 2**32:
        yield Finding("python", "broken", f"{detail}, 32 bits", "install a 64-bit Python")
    else:
        yield Finding("python", "ok", detail)


def check_packages() -> Iterator[Finding]:
    """Every package that Pillion needs, without importing it."""
    for name, least in REQUIRED.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "broken", "not installed", f"pip install '{name}>={least}'")
            continue
        if version_key(version) < version_key(least):
            yield Finding(name, "broken", f"{version}, too old", f"pip install '{name}>={least}'")
        else:
            yield Finding(name, "ok", version)


def check_cuda() -> Iterator[Finding]:
    """NVIDIA devices, and whether torch and Triton can use them. Imports torch only if there are any."""
    driver = Path("/proc/driver/nvidia/version")
    if not driver.exists() and shutil.which("nvidia-smi") is None:
        yield Finding("cuda", "ok", "no NVIDIA device; models run on the CPU")
        return
    try:
        answer = subprocess.run(
            [sys.executable, "-P", "-c", _CUDA_QUESTION],
            capture_output=True,
            text=True,
            timeout=_CUDA_DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        yield Finding(
            "cuda",
            "warning",
            f"torch found no answer about CUDA within {_CUDA_DEADLINE_S:g} s",
            "see whether `nvidia-smi` answers; models run with --device cpu",
        )
        return
    available, _, devices = answer.stdout.strip().partition(" ")
    if available != "True":
        lines = answer.stderr.strip().splitlines()
        yield Finding(
            "cuda",
            "warning",
            "there is an NVIDIA driver but torch cannot use it"
            + (f": {lines[-1]}" if lines else ""),
            "install a torch built for this driver's CUDA; models run on the CPU until then",
        )
        return
    yield Finding("cuda", "ok", devices)
    yield from _check_triton()


def _check_triton() -> Iterator[Finding]:
    if find_spec("triton") is None:
        yield Finding("triton", "warning", "not installed", "pip install triton")
        return
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if compiler is None:
        yield Finding(
            "triton", "warning", "no C compiler, which Triton's launchers need", "install gcc"
        )
    elif not header.exists():
        yield Finding("triton", "warning", f"{header} is missing", "install python3-dev")
    else:
        yield Finding("triton", "ok", f"{importlib.metadata.version('triton')} with {compiler}")


def check_run_directory() -> Iterator[Finding]:
    """Where daemons keep their sockets: that this user owns it, and that sockets work there."""
    root = runtime_root()
    advice = "set PILLION_RUNTIME_DIR to a short path on a local disk that only you may write"
    probe = RunDir(root / f"doctor-{os.getpid()}")
    try:
        probe.create()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(os.fspath(probe.client_socket))
        finally:
            shutil.rmtree(probe.root, ignore_errors=True)
    except (ConfigError, OSError) as error:
        yield Finding("run directory", "broken", str(error), advice)
        return
    mode = stat.S_IMODE(root.stat().st_mode)
    if mode & 0o022:
        yield Finding("run directory", "warning", f"{root}: others may write it", advice)
    else:
        yield Finding("run directory", "ok", str(root))


def check_shared_memory() -> Iterator[Finding]:
    """/dev/shm, which torch uses."""
    path = Path("/dev/shm")
    if not path.is_dir() or not os.access(path, os.W_OK):
        yield Finding("/dev/shm", "warning", "missing or not writable", "mount a tmpfs there")
        return
    free = shutil.disk_usage(path).free
    state: Literal["ok", "warning"] = "ok" if free >= _LEAST_SHM_BYTES else "warning"
    advice = "" if state == "ok" else "give the container more (--shm-size=1g)"
    yield Finding("/dev/shm", state, f"{free / GIB:.1f} GiB free", advice)


def check_memory() -> Iterator[Finding]:
    """Memory and processors, with the limits of a container."""
    available = available_memory_bytes()
    cores = len(os.sched_getaffinity(0))
    detail = f"{available / GIB:.1f} GiB available, {cores} processor{'s' if cores > 1 else ''}"
    if available < _LEAST_MEMORY_BYTES:
        yield Finding("memory", "warning", detail, "even a small model wants 2 GiB")
    else:
        yield Finding("memory", "ok", detail)


def available_memory_bytes() -> int:
    """What is free on this machine or in this container, whichever is less."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return available
    return available if limit == "max" else min(available, max(0, int(limit) - used))


def check_descriptors() -> Iterator[Finding]:
    """How many files and sockets a process may open: each client is one. A daemon takes what the hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = hard != resource.RLIM_INFINITY and hard < _LEAST_DESCRIPTORS
    detail = "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard}"
    advice = f"ulimit -Hn {_LEAST_DESCRIPTORS}" if few else ""
    too_few = few and hard < LEAST_OPEN_FILES
    yield Finding("open files", "broken" if too_few else "warning" if few else "ok", detail, advice)


def check_model_cache() -> Iterator[Finding]:
    """Where fetched models are kept, and what is there."""
    directory = packaged_models.cache_dir()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        yield Finding(
            "model cache", "broken", f"{directory}: {error.strerror}", "set XDG_CACHE_HOME"
        )
        return
    free = shutil.disk_usage(directory).free
    there = [
        name
        for name, model in packaged_models.ALIASES.items()
        if packaged_models.cached_file(model)
    ]
    detail = f"{directory}, {free / GIB:.1f} GiB free, holds {', '.join(there) or 'no model yet'}"
    if free < _LEAST_FREE_DISK_BYTES:
        yield Finding("model cache", "warning", detail, "make room, or set XDG_CACHE_HOME")
    else:
        yield Finding("model cache", "ok", detail)


def check_daemons() -> Iterator[Finding]:
    """The daemons of this user, and whether they answer."""
    root = runtime_root()
    names = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    running = [
        (name, pid) for name in names if (pid := daemon_pid(RunDir(root / name))) is not None
    ]
    if not running:
        yield Finding("daemons", "ok", "none running")
    for name, pid in running:
        yield _daemon_finding(RunDir(root / name), name, pid)


def _daemon_finding(directory: RunDir, name: str, pid: int) -> Finding:
    check = f"daemon {name}"
    try:
        control = ControlClient(directory)
        try:
            status = control.ask(StatusRequest())
        finally:
            control.close()
    except PillionError as error:
        if is_stopped(pid):
            return Finding(check, "broken", str(error))
        advice = f"see {directory.log}; end it with `pillion stop --now --name {name}`"
        return Finding(check, "broken", f"pid {pid} does not answer: {error}", advice)
    if not isinstance(status, DaemonStatus) or status.state == "failed":
        return Finding(check, "broken", f"pid {pid} has failed", f"pillion logs --name {name}")
    return Finding(check, "ok", f"{status.state}, {status.model}, pid {pid}")


def version_key(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, for comparison: "2.11.0+cpu" -> (2, 11, 0)."""
    numbers = []
    for part in version.partition("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
