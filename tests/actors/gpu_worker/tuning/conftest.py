"""Fixtures of the tests of tuning."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from untuned_models import plan_for

from pillion.actors.gpu_worker.tuning.plan import TuningPlan
from pillion.kernels.fused_linear.tiles import use_tuned


@pytest.fixture
def plan() -> TuningPlan:
    """For few rows of a shape that nothing is measured for."""
    found = plan_for(max_num_seqs=8)
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def _nothing_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test finds what another one has tuned."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    use_tuned({})
