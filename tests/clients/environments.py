"""Environments of clients that are too large to install with the tests: made once for their pins, kept in the cache."""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

import pytest

from pillion.runtime.packaged_models import cache_dir

OTHERS: Final = Path(__file__).parent / "others"
INSTALL_DEADLINE_S: Final = 400.0
# What pip and npm say where there is no way to their registries.
_UNREACHABLE: Final = (
    "Failed to establish a new connection",
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeout",
    "Network is unreachable",
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ENETUNREACH",
    "ETIMEDOUT",
)


def python_environment() -> Path:
    """An interpreter that has the Python clients. Skips the test where they cannot be fetched."""
    folder = _folder(f"python{sys.version_info.major}.{sys.version_info.minor}", "requirements.txt")
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        venv.create(folder, clear=True)
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        options = ["--quiet", "--retries", "1", "--no-deps", "--no-compile"]
        _install([*pip, "install", *options, "-r", OTHERS / "requirements.txt"])
        (folder / "done").touch()
    return python


def node_environment() -> Path:
    """A folder with the packages for Node. Skips the test where they cannot be had."""
    if shutil.which("npm") is None:
        pytest.skip("Node's clients need node and npm, which are not installed")
    folder = _folder("node", "package-lock.json")
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(OTHERS / name, folder)
        _install(["npm", "ci", "--no-audit", "--no-fund", "--prefix", folder])
        (folder / "done").touch()
    return folder


def _folder(kind: str, pins: str) -> Path:
    digest = hashlib.sha256((OTHERS / pins).read_bytes()).hexdigest()[:12]
    return cache_dir().parent / "clients" / f"{kind}-{digest}"


def _install(command: list[str | Path]) -> None:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=INSTALL_DEADLINE_S,
        env={**os.environ, "npm_config_fetch_retries": "1"},
    )
    said = done.stdout + done.stderr
    if done.returncode and any(sign in said for sign in _UNREACHABLE):
        pytest.skip("the clients have to be fetched once, and their registry cannot be reached")
    assert not done.returncode, said
