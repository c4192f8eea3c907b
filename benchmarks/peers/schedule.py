"""What to measure next: fewest samples first, servers last, engines in turn, nothing that no longer fits the time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

# A measurement may take so much longer than it did the last time.
SLACK = 1.3


@dataclass(frozen=True)
class Cell:
    """One measurement that is repeated."""

    model: str
    case: str
    engine: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.model, self.case, self.engine

    @property
    def kind(self) -> str:
        """The case without its size."""
        return self.case.partition(" ")[0]

    @property
    def engine_name(self) -> str:
        """The engine, by whatever way in."""
        return self.engine.partition(" ")[0]

    @property
    def is_served(self) -> bool:
        """Whether a server is measured."""
        return self.kind == "serve"

    @property
    def size(self) -> int:
        """The batch or the concurrency."""
        return int(self.case.partition(" ")[2])


@dataclass
class Schedule:
    """`cells` in order of importance, the engines of a case one after the other."""

    cells: Sequence[Cell]
    rounds: Callable[[Cell], int]
    deadline: float  # of time.monotonic()
    count: Callable[[Cell], int]  # samples so far
    clock: Callable[[], float] = time.monotonic
    took_s: dict[Cell, float] = field(default_factory=dict)
    dropped: dict[Cell, str] = field(default_factory=dict)

    def next(self) -> Cell | None:
        """The cell to measure now; None: all is done, or nothing that is left fits."""
        open_cells = [
            cell for cell in self.cells if cell not in self.dropped and not self.is_done(cell)
        ]
        left = self.deadline - self.clock()
        fitting = [cell for cell in open_cells if self.took_s.get(cell, 0.0) * SLACK < left]
        if not fitting:
            return None
        return min(fitting, key=self._place)

    def is_done(self, cell: Cell) -> bool:
        return self.count(cell) >= self.rounds(cell)

    def took(self, cell: Cell, seconds: float) -> None:
        """What the last measurement of a cell took."""
        self.took_s[cell] = seconds

    def drop(self, cell: Cell, reason: str) -> None:
        """Never again, with the reason."""
        self.dropped[cell] = reason

    def left_s(self) -> float:
        return max(0.0, self.deadline - self.clock())

    def _place(self, cell: Cell) -> tuple[int, bool, int, int]:
        """Round, servers behind all else; then case, and the engine's turn, which moves on by one each round."""
        done = self.count(cell)
        cases = list(dict.fromkeys((c.model, c.case) for c in self.cells))
        engines = [c.engine for c in self.cells if (c.model, c.case) == (cell.model, cell.case)]
        turn = (engines.index(cell.engine) + done) % len(engines)
        return done, cell.is_served, cases.index((cell.model, cell.case)), turn
