"""A short chaos run with the real small model; `pillion chaos` makes longer ones."""

import sys
from pathlib import Path

import pytest

from pillion.runtime.chaos.run import ChaosSettings, run_chaos
from pillion.runtime.config import EngineConfig


def test_nothing_is_lost_repeated_or_changed(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILLION_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
    config = EngineConfig(
        model=str(smollm2_path), device="cpu", dtype="float32", max_num_seqs=8, stall_limit_s=3.0
    )
    settings = ChaosSettings(
        seed=7, num_requests=70, num_distinct=27, num_strikes=10, stop_share=0.2, max_tokens=15
    )
    report = run_chaos(config, settings, lambda line: print(line, file=sys.stderr))
    print(report.text(), file=sys.stderr)
    assert report.is_right, report.text()
    assert len(report.blows) == 10
    # A process that is struck while it starts is another life lost.
    assert sum(report.restarts.values()) >= 9
