"""What the launcher keeps of its actors' reports."""

from types import SimpleNamespace
from typing import Any

import pytest
from fake_actor import geometry
from msgspec.structs import replace

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


def test_the_memory_of_graphs_is_what_the_worker_that_lives_said_last() -> None:
    board = StatusBoard(EngineConfig(model="m"))

    def graphs_bytes(epoch: int) -> int:
        """At the end of this life's start 7."""
        board.geometry = replace(geometry(epoch), graphs_bytes=7)
        found = board.status([], lambda _: Sign(0, False)).geometry
        assert found is not None
        assert replace(found, graphs_bytes=7) == board.geometry
        return found.graphs_bytes

    def say(epoch: int, **gauges: int | float | str) -> None:
        time_ns = len(gauges)
        board.note_stats(
            ActorStats(actor="gpu_worker", epoch=epoch, counters={}, gauges=gauges, time_ns=time_ns)
        )

    assert board.status([], lambda _: Sign(0, False)).geometry is None
    assert graphs_bytes(1) == 7
    say(1)  # as on a CPU
    assert graphs_bytes(1) == 7
    say(1, graphs=3, graphs_bytes=30)
    assert graphs_bytes(1) == 30
    assert graphs_bytes(2) == 7
