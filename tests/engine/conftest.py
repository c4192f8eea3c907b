"""Daemons with a fake worker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ring_daemon import RingDaemon, StartRing


@pytest.fixture
def start_ring(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StartRing]:
    """Starts a daemon with settings of the test's own; the clients of this process find it by its name."""
    daemons: list[RingDaemon] = []

    def start(**settings: Any) -> RingDaemon:
        root = tmp_path_factory.mktemp("r")
        monkeypatch.setenv("PILLION_RUNTIME_DIR", str(root))
        daemons.append(RingDaemon(smollm2_path, root, **settings))
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.close()
