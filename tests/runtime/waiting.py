"""Waiting in tests."""

import time
from collections.abc import Callable

import pytest


def wait_until(what: str, deadline_s: float, holds: Callable[[], bool]) -> None:
    """Waits for a condition; fails the test with its name if it does not come true in time."""
    deadline = time.monotonic() + deadline_s
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {deadline_s:g} s in vain until {what}")
        time.sleep(0.005)
