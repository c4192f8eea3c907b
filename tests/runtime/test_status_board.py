"""What the launcher keeps of its actors' reports."""

from types import SimpleNamespace
from typing import Any

import pytest

from pillion.messages.control import ActorStats
from pillion.runtime import status_board
from pillion.runtime.clock import NS_PER_S
from pillion.runtime.config import EngineConfig
from pillion.runtime.progress import Sign
from pillion.runtime.status_board import StatusBoard


def rates_of(board: StatusBoard, epoch: int) -> dict[str, float]:
    child: Any = SimpleNamespace(name="scheduler", epoch=epoch, alive=False, pid=0, state="running")
    _, scheduler = board.status([child], lambda _: Sign(0, False)).actors
    return scheduler.rates


def test_rates_are_of_one_life(monkeypatch: pytest.MonkeyPatch) -> None:
    board = StatusBoard(EngineConfig(model="m"))
    for second, epoch, steps, rates in (
        (1, 1, 10, {}),
        (2, 1, 40, {"steps": 30.0}),
        (3, 2, 5, {}),
        (4, 2, 7, {"steps": 2.0}),
    ):
        monkeypatch.setattr(status_board, "now_ns", lambda second=second: second * NS_PER_S)
        counters: dict[str, int | float] = {"steps": steps}
        board.note_stats(
            ActorStats(
                actor="scheduler",
                epoch=epoch,
                counters=counters,
                gauges={},
                time_ns=second * NS_PER_S,
            )
        )
        assert rates_of(board, epoch) == rates
    assert rates_of(board, 3) == {}
