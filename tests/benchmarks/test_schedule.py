"""Which cell is measured next."""

from collections import Counter

from peers.schedule import Cell, Schedule

CELLS = [Cell("m", case, engine) for case in ("decode 1", "mixed") for engine in ("a", "b", "c")]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def drain(schedule: Schedule, counts: Counter[Cell]) -> list[str]:
    order = []
    while (cell := schedule.next()) is not None:
        counts[cell] += 1
        order.append(f"{cell.case[0]}{cell.engine}")
    return order


def make(
    counts: Counter[Cell], clock: Clock, serve_rounds: int = 2, deadline: float = 100.0
) -> Schedule:
    def rounds(cell: Cell) -> int:
        return serve_rounds if cell.kind == "serve" else 2

    return Schedule(CELLS, rounds, deadline, counts.__getitem__, clock)


def test_engines_take_turns_and_another_one_begins_each_round() -> None:
    counts: Counter[Cell] = Counter()
    order = drain(make(counts, Clock()), counts)
    assert order == ["da", "db", "dc", "ma", "mb", "mc", "dc", "da", "db", "mc", "ma", "mb"]


def test_what_was_measured_before_is_not_measured_again() -> None:
    counts = Counter(dict.fromkeys(CELLS[:4], 2))
    counts[CELLS[4]] = 1
    assert drain(make(counts, Clock()), counts) == ["mc", "mc", "mb"]


def test_what_no_longer_fits_is_left_out_and_the_rest_goes_on() -> None:
    counts, clock = Counter(dict.fromkeys(CELLS, 1)), Clock()
    schedule = make(counts, clock)
    for cell in CELLS:
        schedule.took(cell, 40.0 if cell.case == "mixed" else 1.0)
    clock.now = 50.0
    assert drain(schedule, counts) == ["dc", "da", "db"]
    clock.now = 100.0
    assert schedule.next() is None
    assert schedule.left_s() == 0.0


def test_a_dropped_cell_is_not_tried_again() -> None:
    counts: Counter[Cell] = Counter()
    schedule = make(counts, Clock())
    schedule.drop(CELLS[0], "ended")
    assert "da" not in drain(schedule, counts)
    assert schedule.dropped == {CELLS[0]: "ended"}


def test_servers_come_last_in_each_round() -> None:
    cells = [Cell("m", "serve 64", "a"), Cell("m", "decode 1", "a")]
    counts: Counter[Cell] = Counter()
    schedule = Schedule(
        cells,
        lambda cell: 2 if cell.kind == "serve" else 3,
        100.0,
        counts.__getitem__,
        Clock(),
    )
    assert drain(schedule, counts) == ["da", "sa", "da", "sa", "da"]


def test_a_cell_knows_its_kind_and_size() -> None:
    cell = Cell("m", "serve 64", "a over HTTP")
    assert (cell.kind, cell.size, cell.key) == ("serve", 64, ("m", "serve 64", "a over HTTP"))
    assert (cell.engine_name, cell.is_served) == ("a", True)
