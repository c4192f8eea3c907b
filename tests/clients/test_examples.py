"""What docs/ shows of the client packages runs as it stands, but for the address and the key."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Served

pytestmark = pytest.mark.model

DEADLINE_S = 60
# Put behind each of them.
CHECKS = """
assert [model.id for model in client.models.list()] == ["smollm2"]
if "stream" in globals():
    assert next(stream).choices
    stream.close()
client.close()
"""
DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = [
    pytest.param(example, id=f"{name}-{package}")
    for name in ("http.md", "deployment.md")
    for example in re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)
    for package in ("openai", "anthropic")
    if f"import {package}\n" in example
]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(served: Served, example: str, tmp_path: Path) -> None:
    for shown, here in (
        ("http://127.0.0.1:8000", served.url),
        ("/sockets/http.sock", str(served.socket)),
        ('"unused"', repr(served.key)),
    ):
        example = example.replace(shown, here)
    script = tmp_path / "example.py"
    script.write_text(example + CHECKS)
    done = subprocess.run(
        [sys.executable, "-P", script], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
