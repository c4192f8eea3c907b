"""What benchmarks measure: the environment of their daemons, and the time per step."""

import os
from pathlib import Path

import pytest

from pillion.runtime.bench.engine import KERNEL_CACHE, Timing, kernel_cache, seconds_per_step


def timing(*arrivals: float) -> Timing:
    return Timing(arrivals[0], arrivals[-1], len(arrivals), 0.0, list(arrivals))


def test_steps_are_counted_from_the_last_first_token_to_the_first_end() -> None:
    run = [timing(1.0, 2.0, 3.0, 4.0, 5.0), timing(2.0, 3.0, 4.0, 5.0, 9.0)]
    assert seconds_per_step(run) == pytest.approx(1.0)


def test_tokens_that_come_together_are_steps_too() -> None:
    assert seconds_per_step([timing(1.0, 2.0, 2.0, 3.0, 3.0)]) == pytest.approx(0.5)


@pytest.mark.parametrize("before", [None, "/somewhere"])
def test_an_empty_cache_of_kernels_is_there_for_one_start_only(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before is None:
        monkeypatch.delenv(KERNEL_CACHE, raising=False)
    else:
        monkeypatch.setenv(KERNEL_CACHE, before)
    with kernel_cache(empty=False):
        assert os.environ.get(KERNEL_CACHE) == before
    with kernel_cache(empty=True):
        folder = Path(os.environ[KERNEL_CACHE])
        assert list(folder.iterdir()) == []
    assert os.environ.get(KERNEL_CACHE) == before
    assert not folder.exists()
