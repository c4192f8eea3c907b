"""When a daemon gives up on an actor, and what it says."""

from pillion.runtime.clock import NS_PER_S
from pillion.runtime.restart_budget import RestartBudget


def test_the_first_cause_is_told_when_the_budget_is_spent() -> None:
    budget = RestartBudget(max_restarts=2, period_s=60)
    assert budget.spend("a", "a died of x", 0) is None
    assert budget.spend("a", "a died of y", NS_PER_S) is None
    assert budget.spend("a", "a died of z", 2 * NS_PER_S) == (
        "a died 3 times within restart_period_s = 60 s, and first thus: a died of x"
    )


def test_deaths_are_forgotten_after_the_period() -> None:
    budget = RestartBudget(max_restarts=1, period_s=10)
    for second in range(0, 100, 11):
        assert budget.spend("a", "a died", second * NS_PER_S) is None
    assert budget.spend("a", "a died", 109 * NS_PER_S) is not None


def test_without_a_good_life_between_nothing_is_forgotten() -> None:
    budget = RestartBudget(max_restarts=2, period_s=10)
    for second in (0, 100):
        assert budget.spend("a", f"a died at {second}", second * NS_PER_S, may_forget=False) is None
    assert budget.spend("a", "a died", 200 * NS_PER_S) is None
    assert budget.spend("a", "a died", 300 * NS_PER_S, may_forget=False) is None
    assert budget.spend("a", "a died", 400 * NS_PER_S, may_forget=False) == (
        "a died 3 times without a step between that came out well, and first thus: a died"
    )


def test_each_actor_has_its_own() -> None:
    budget = RestartBudget(max_restarts=1, period_s=10)
    assert budget.spend("a", "a died", 0) is None
    assert budget.spend("b", "b died", 0) is None


def test_no_restarts_means_that_the_first_death_is_the_cause() -> None:
    assert RestartBudget(0, 10).spend("a", "a died of x", 0) == "a died of x"
