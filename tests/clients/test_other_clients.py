"""Clients with environments of their own: LangChain, LlamaIndex, lm-eval, and the packages for Node."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from environments import OTHERS, node_environment, python_environment

from .conftest import Served, serving

# The first run fetches what the clients need.
pytestmark = [pytest.mark.model, pytest.mark.clients, pytest.mark.timeout(900)]

RUN_DEADLINE_S = 240.0


@pytest.fixture(scope="session")
def python() -> Path:
    """An interpreter that has the Python clients."""
    return python_environment()


@pytest.fixture(scope="session")
def node_folder() -> Path:
    """A folder with the packages for Node."""
    return node_environment()


def run(served: Served, *command: str | Path, cwd: Path, home: Path) -> None:
    arguments = [*command, served.url, served.key, "smollm2"]
    plain = {"PATH": os.environ["PATH"], "HOME": str(home)}  # neither keys nor proxies from here
    done = subprocess.run(
        arguments, cwd=cwd, env=plain, capture_output=True, text=True, timeout=RUN_DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("script", ["langchain_client.py", "llama_index_client.py"])
def test_python_clients(served: Served, python: Path, tmp_path: Path, script: str) -> None:
    run(served, python, "-P", OTHERS / script, cwd=tmp_path, home=tmp_path)


def test_lm_eval(smollm2_path: Path, python: Path, tmp_path: Path) -> None:
    """Both of its ways in, and that its log-likelihoods are those that the server tells otherwise.

    In float32: else products for other numbers of rows round log-probabilities by a tenth.
    """
    tasks = OTHERS / "lm_eval_tasks"
    with serving(smollm2_path, "float32") as served:
        run(served, python, "-P", OTHERS / "lm_eval_client.py", cwd=tasks, home=tmp_path)


def test_node_clients(served: Served, node_folder: Path, tmp_path: Path) -> None:
    shutil.copy(OTHERS / "node_clients.mjs", node_folder)
    run(served, "node", "node_clients.mjs", cwd=node_folder, home=tmp_path)
