"""What the scheduler's process loads."""

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src"


def test_it_stays_small() -> None:
    program = (
        "import sys; import pillion.actors.scheduler.process, pillion.actors.scheduler.scheduler;"
        "heavy = {'torch', 'transformers', 'numpy', 'asyncio'} & set(sys.modules); print(sorted(heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"
