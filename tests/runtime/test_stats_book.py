"""Sums over the lives of actors."""

from typing import Any

from pillion.messages.control import ActorStats
from pillion.runtime.histogram import Histogram
from pillion.runtime.stats_book import StatsBook


def stats(epoch: int, time_ns: int = 0, seconds: float = 0.5, **counters: int) -> ActorStats:
    times = Histogram([1.0, 2.0])
    times.observe(seconds)
    return ActorStats(
        actor="a",
        epoch=epoch,
        counters=dict(counters),
        gauges={"open": 1},
        tallies={"kinds": dict(counters)},
        histograms={"seconds": times.counts()},
        time_ns=time_ns,
    )


def book_of(*reports: ActorStats) -> StatsBook:
    book = StatsBook()
    for report in reports:
        book.note(report)
    return book


def totals(book: StatsBook) -> Any:
    return book.totals("a")


def test_the_latest_report_of_a_life_holds() -> None:
    book = book_of(stats(1, 5, x=1), stats(1, 6, x=3))
    assert totals(book).counters == {"x": 3}
    assert totals(book).histograms["seconds"].counts == [1, 0, 0]


def test_a_report_that_was_overtaken_changes_nothing() -> None:
    book = book_of(stats(1, 6, x=3), stats(1, 5, x=1), stats(2, 1, x=1), stats(1, 9, x=4))
    assert totals(book).counters == {"x": 4}
    assert book.latest("a", 1) is None


def test_an_early_report_leaves_the_rates_alone() -> None:
    second = 1_000_000_000
    book = book_of(stats(1, second, x=1))
    book.note(stats(1, 2 * second - 1, x=4), in_turn=False)
    book.note(stats(1, 2 * second, x=5))
    assert book.rates("a", 1, 2 * second) == {"x": 4.0}
    assert book.rates("a", 2, 2 * second) == {}


def test_lives_are_added_up() -> None:
    book = book_of(stats(1, x=3, y=1), stats(2, seconds=1.5, x=2), stats(4, seconds=9.0, x=1))
    assert totals(book).counters == {"x": 6, "y": 1}
    assert totals(book).tallies == {"kinds": {"x": 6, "y": 1}}
    assert totals(book).histograms["seconds"].counts == [1, 1, 1]
    assert totals(book).histograms["seconds"].total == 11.0
    latest = book.latest("a", 4)
    assert latest is not None
    assert latest.counters == {"x": 1}


def test_an_actor_without_a_report_has_no_numbers() -> None:
    assert totals(StatsBook()).counters == {}
    assert StatsBook().latest("a", 1) is None
