"""Growth per second, from reports of an actor."""

import pytest

from pillion.runtime.clock import NS_PER_S
from pillion.runtime.counter_rates import CounterRates


def test_growth_between_the_last_two_reports() -> None:
    rates = CounterRates()
    assert rates.at(0) == {}
    rates.note({"steps": 10}, NS_PER_S)
    assert rates.at(NS_PER_S) == {}, "one report says nothing of time"
    rates.note({"steps": 40, "new": 3}, 2 * NS_PER_S)
    assert rates.at(2 * NS_PER_S) == {"steps": 30.0, "new": 3.0}
    rates.note({"steps": 41, "new": 3}, 4 * NS_PER_S)
    assert rates.at(4 * NS_PER_S) == pytest.approx({"steps": 0.5, "new": 0.0})


def test_an_actor_that_is_silent_does_nothing() -> None:
    rates = CounterRates()
    rates.note({"steps": 10}, 0)
    rates.note({"steps": 40}, NS_PER_S)
    assert rates.at(3 * NS_PER_S) == {"steps": 30.0}
    assert rates.at(3 * NS_PER_S + 1) == {"steps": 0.0}


def test_two_reports_at_once_keep_the_rates() -> None:
    rates = CounterRates()
    rates.note({"steps": 10}, 0)
    rates.note({"steps": 40}, NS_PER_S)
    rates.note({"steps": 50}, NS_PER_S)
    assert rates.at(NS_PER_S) == {"steps": 30.0}
