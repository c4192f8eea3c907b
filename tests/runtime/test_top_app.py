"""The terminal application, driven by textual's own pilot."""

from collections.abc import Callable

import msgspec
import pytest
from textual.widgets import DataTable, Sparkline, Static

from pillion.runtime.commands.top import ask_live_view
from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.live_view import (
    ActorView,
    KvBlocks,
    LiveView,
    Queue,
    StepSplit,
    TokenRates,
)
from pillion.runtime.top_app import Graph, TopApp, cpu_share

from .conftest import StartDaemon

NEVER_S = 3600.0  # no look but those that the test asks for
WORKER = ActorView(
    name="gpu_worker",
    state="running",
    pid=77,
    life=1,
    memory_bytes=50 << 20,
    cpu_seconds=1.0,
    restarts={},
    last_death=None,
    last_death_s_ago=None,
)
VIEW = LiveView(
    name="d",
    version="9.9",
    model="[fake]",
    device="cpu",
    state="ready",
    not_ready=None,
    uptime_s=10.0,
    weights_bytes=0,
    kv_bytes=0,
    queue=Queue(running=3, waiting=1, max_running=4),
    kv_blocks=KvBlocks(used=8, cached=4, total=32),
    tokens_per_second=TokenRates(prompt=0.0, generated=61.5),
    step=StepSplit(
        per_second=20.0, prepare_ms=0.5, execute_ms=15.0, output_ms=0.25, bubble_ms=0.125
    ),
    actors=[WORKER],
)


def text_of(app: TopApp, selector: str) -> str:
    return str(app.query_one(selector, Static).render())


def asking(*answers: LiveView | Exception) -> Callable[[], LiveView]:
    """Gives one answer after the other."""
    left = iter(answers)

    def ask() -> LiveView:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


async def test_it_shows_the_daemon_and_its_actors() -> None:
    app = TopApp(asking(VIEW), NEVER_S)
    async with app.run_test(size=(120, 40)):
        assert text_of(app, "#title") == "d: ready, [fake] on cpu, up 10 s, pillion 9.9"
        assert text_of(app, "#generated .value") == "61.5"
        assert text_of(app, "#queue .value") == "3 running, 1 waiting"
        assert text_of(app, "#kv .value") == "25.0, cached 12.5"
        step = "prepare 0.50 execute 15.00 output 0.25 bubble 0.12"
        assert text_of(app, "#step .value") == step
        assert app.query_one(DataTable).get_row_at(0) == [
            "gpu_worker", "running", "77", "-", "50 MiB", "0", ""
        ]  # fmt: skip


async def test_it_goes_on_when_the_daemon_is_gone_and_comes_back() -> None:
    died = msgspec.structs.replace(
        WORKER, pid=78, restarts={"killed": 2}, last_death="it was killed by SIGKILL"
    )
    starting = msgspec.structs.replace(
        VIEW, uptime_s=1.0, step=None, kv_blocks=None, device=None, not_ready="it starts"
    )
    back = msgspec.structs.replace(VIEW, actors=[died])
    app = TopApp(asking(VIEW, DaemonUnavailable("no daemon"), starting, back), NEVER_S)
    async with app.run_test(size=(120, 40)):
        await app.look()
        assert text_of(app, "#notice") == "no daemon; asking again"
        await app.look()
        assert text_of(app, "#notice") == "it starts"
        assert text_of(app, "#kv .value") == "no blocks yet"
        assert text_of(app, "#step .value") == "no step runs"
        await app.look()
        assert text_of(app, "#notice") == ""
        row = app.query_one(DataTable).get_row_at(0)
        assert row[5:] == ["2 killed", "it was killed by SIGKILL"]


async def test_graphs_remember() -> None:
    slower = msgspec.structs.replace(VIEW, tokens_per_second=TokenRates(prompt=0.0, generated=5.0))
    app = TopApp(asking(VIEW, slower), NEVER_S)
    async with app.run_test(size=(120, 40)):
        graph = app.query_one("#generated", Graph)
        sparkline = graph.query_one(Sparkline)
        assert sparkline.data == [], "one value has no course"
        await app.look()
        assert sparkline.data == [61.5, 5.0]
        assert text_of(app, "#generated .value") == "5.0"
        assert graph.border_subtitle == "5 to 61.5"
        assert list(graph.values) == [61.5, 5.0]


async def test_keys_pause_and_quit() -> None:
    app = TopApp(asking(VIEW), NEVER_S)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("p")
        assert app.is_paused
        assert text_of(app, "#title").endswith("PAUSED")
        await app.look_unless_paused()  # there is no second answer
        await pilot.press("p")
        assert not app.is_paused
        await pilot.press("q")
    assert app.return_code == 0


def test_a_share_of_a_core_is_told_of_the_same_process_alone() -> None:
    busy = msgspec.structs.replace(WORKER, cpu_seconds=1.5)
    later = msgspec.structs.replace(VIEW, uptime_s=11.0, actors=[busy])
    assert cpu_share(busy, VIEW, later) == pytest.approx(0.5)
    assert cpu_share(busy, None, later) is None
    assert cpu_share(msgspec.structs.replace(busy, pid=78), VIEW, later) is None
    assert cpu_share(busy, later, VIEW) is None


async def test_it_shows_a_living_daemon(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    daemon.wait_state("ready")
    app = TopApp(lambda: ask_live_view(daemon.directory), NEVER_S)
    async with app.run_test(size=(120, 40)):
        assert text_of(app, "#title").startswith("d: ready, fake on cpu, up ")
        table = app.query_one(DataTable)
        names = {str(table.get_row_at(number)[0]) for number in range(table.row_count)}
        assert names == {"launcher", "scheduler", "kv_manager", "detokenizer", "gpu_worker"}
