"""Every test that docs/failures.md names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_tests_that_the_table_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/.]+)::(\w+)`", (ROOT / "docs" / "failures.md").read_text())
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"def {name}\b", (ROOT / path).read_text())
    ]
    assert len(named) > 60
    assert not missing
