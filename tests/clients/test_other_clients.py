"""Clients that are too large to install with the tests: each in an environment of its own, made once."""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from pillion.runtime.packaged_models import cache_dir

from .conftest import Served

pytestmark = [pytest.mark.model, pytest.mark.clients]

FOLDER = Path(__file__).parent / "others"
INSTALL_DEADLINE_S = 600.0
RUN_DEADLINE_S = 240.0


def environment(kind: str, pins: str) -> Path:
    """A folder for these pinned versions, and whether it is still to be filled."""
    digest = hashlib.sha256((FOLDER / pins).read_bytes()).hexdigest()[:12]
    return cache_dir().parent / "clients" / f"{kind}-{digest}"


@pytest.fixture(scope="session")
def python() -> Path:
    """An interpreter that has the Python clients."""
    folder = environment(
        f"python{sys.version_info.major}.{sys.version_info.minor}", "requirements.txt"
    )
    if not (folder / "done").exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [folder / "bin" / "pip", "install", "--quiet", "-r", FOLDER / "requirements.txt"]
        subprocess.run(command, check=True, timeout=INSTALL_DEADLINE_S)
        (folder / "done").touch()
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def node_folder() -> Path:
    """A folder with the packages for Node."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = environment("node", "package.json")
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(FOLDER / "package.json", folder)
        command = ["npm", "install", "--silent"]
        subprocess.run(command, cwd=folder, check=True, timeout=INSTALL_DEADLINE_S)
        (folder / "done").touch()
    return folder


def run(served: Served, *command: str | Path, cwd: Path | None = None) -> None:
    arguments = [*command, served.url, served.key, "smollm2"]
    plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        arguments, cwd=cwd, env=plain, capture_output=True, text=True, timeout=RUN_DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("script", ["langchain_client.py", "llama_index_client.py"])
def test_python_clients(served: Served, python: Path, script: str) -> None:
    run(served, python, "-P", FOLDER / script)


def test_node_clients(served: Served, node_folder: Path) -> None:
    shutil.copy(FOLDER / "node_clients.mjs", node_folder)
    run(served, "node", "node_clients.mjs", cwd=node_folder)
