"""The terminal application behind `pillion top`."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Grid, Vertical
from textual.widgets import DataTable, Footer, Sparkline, Static

from pillion.runtime.errors import PillionError
from pillion.runtime.live_view import ActorView, LiveView

INTERVAL_S: Final = 1.0
HISTORY: Final = 300  # looks that a graph remembers

_MIB: Final = 1024 * 1024
_COLUMNS: Final = ("actor", "state", "pid", "cpu", "memory", "restarts", "last death")


class Graph(Vertical):
    """A quantity: its caption, the value now, and its last minutes between their lowest and highest."""

    DEFAULT_CSS = """
    Graph { border: round $foreground-muted; border-title-color: $foreground; padding: 0 1; }
    Graph Sparkline { height: 1fr; }
    """

    def __init__(self, graph_id: str, caption: str) -> None:
        super().__init__(id=graph_id)
        self.border_title = caption
        self.values: deque[float] = deque(maxlen=HISTORY)

    def compose(self) -> ComposeResult:
        """Called by textual."""
        yield Static(classes="value")
        yield Sparkline([])

    def show(self, value: float, text: str) -> None:
        """Takes the value of this moment, and what is written for it."""
        self.values.append(value)
        self.border_subtitle = f"{min(self.values):.4g} to {max(self.values):.4g}"
        self.query_one(Static).update(text)
        # Of a single value a sparkline would draw bars of full height.
        self.query_one(Sparkline).data = list(self.values) if len(self.values) > 1 else []


class TopApp(App[None]):
    """Asks `ask` every second, and shows what it says or why it fails."""

    CSS = """
    #title { height: 1; background: $panel; padding: 0 1; text-style: bold; }
    #notice { color: $warning; padding: 0 1; height: auto; }
    Grid { grid-size: 3; grid-rows: 6; height: 12; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        ("p", "pause", "Pause or go on"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, ask: Callable[[], LiveView], interval_s: float = INTERVAL_S) -> None:
        super().__init__()
        self.is_paused = False
        self._ask = ask
        self._interval_s = interval_s
        self._last: LiveView | None = None

    def compose(self) -> ComposeResult:
        """Called by textual."""
        yield Static(id="title", markup=False)
        yield Static(id="notice", markup=False)
        with Grid():
            yield Graph("generated", "generated tokens per second")
            yield Graph("prompt", "prompt tokens computed per second")
            yield Graph("queue", "sequences")
            yield Graph("kv", "KV cache, % of blocks in use")
            yield Graph("step", "time of a step, ms")
            yield Graph("memory", "memory, MiB resident")
        yield DataTable(cursor_type="none")
        yield Footer()

    async def on_mount(self) -> None:
        """Called by textual."""
        self.query_one(DataTable).add_columns(*_COLUMNS)
        await self.look()
        self.set_interval(self._interval_s, self.look_unless_paused)

    async def look(self) -> None:
        """Asks once, beside the loop, and shows the answer."""
        try:
            view = await asyncio.to_thread(self._ask)
        except PillionError as error:
            self.query_one("#notice", Static).update(f"{error}; asking again")
            return
        self.query_one("#notice", Static).update(view.not_ready or "")
        self.query_one("#title", Static).update(self._title(view))
        for graph_id, value, text in quantities(view):
            self.query_one(f"#{graph_id}", Graph).show(value, text)
        table = self.query_one(DataTable)
        table.clear()
        for actor in view.actors:
            table.add_row(*actor_cells(actor, cpu_share(actor, self._last, view)))
        self._last = view

    def action_pause(self) -> None:
        """Key p."""
        self.is_paused = not self.is_paused
        if self._last is not None:
            self.query_one("#title", Static).update(self._title(self._last))

    async def look_unless_paused(self) -> None:
        """What the clock does."""
        if not self.is_paused:
            await self.look()

    def _title(self, view: LiveView) -> str:
        where = f" on {view.device}" if view.device is not None else ""
        paused = "  PAUSED" if self.is_paused else ""
        return (
            f"{view.name}: {view.state}, {view.model}{where}, up {view.uptime_s:.0f} s, "
            f"pillion {view.version}{paused}"
        )


def quantities(view: LiveView) -> Iterator[tuple[str, float, str]]:
    """Graph, value and text of everything that is drawn."""
    tokens, queue, blocks, step = view.tokens_per_second, view.queue, view.kv_blocks, view.step
    yield "generated", tokens.generated, f"{tokens.generated:.1f}"
    yield "prompt", tokens.prompt, f"{tokens.prompt:.1f}"
    yield (
        "queue",
        queue.running + queue.waiting,
        f"{queue.running} running, {queue.waiting} waiting",
    )
    if blocks is None:
        yield "kv", 0.0, "no blocks yet"
    else:
        used = 100 * blocks.used / blocks.total
        yield "kv", used, f"{used:.1f}, cached {100 * blocks.cached / blocks.total:.1f}"
    if step is None:
        yield "step", 0.0, "no step runs"
    else:
        times = (step.prepare_ms, step.execute_ms, step.output_ms, step.bubble_ms)
        words = ("prepare", "execute", "output", "bubble")
        told = " ".join(f"{word} {time:.2f}" for word, time in zip(words, times, strict=True))
        yield "step", sum(times), told
    memory = sum(actor.memory_bytes for actor in view.actors) / _MIB
    yield "memory", memory, f"{memory:.0f}"


def cpu_share(actor: ActorView, before: LiveView | None, view: LiveView) -> float | None:
    """Of one core, since the look before; None for a process that was not there then."""
    if before is None or view.uptime_s <= before.uptime_s:
        return None
    for known in before.actors:
        if known.name == actor.name and known.pid == actor.pid:
            return (actor.cpu_seconds - known.cpu_seconds) / (view.uptime_s - before.uptime_s)
    return None


def actor_cells(actor: ActorView, share: float | None) -> tuple[str, ...]:
    """A row of the table."""
    return (
        actor.name,
        actor.state,
        "-" if actor.pid is None else str(actor.pid),
        "-" if share is None else f"{share:.0%}",
        f"{actor.memory_bytes / _MIB:.0f} MiB",
        ", ".join(f"{count} {how}" for how, count in actor.restarts.items()) or "0",
        actor.last_death or "",
    )
