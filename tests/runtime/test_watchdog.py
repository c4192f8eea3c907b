"""Hangs are told from slowness: on a clock of the test's own."""

from collections.abc import Callable

import pytest

from pillion.runtime.clock import NS_PER_S
from pillion.runtime.progress import Sign
from pillion.runtime.watchdog import Hang, Watchdog, longest_sleep_ns, look_interval_s

STALL_LIMIT_S = 2.0
STEP_LIMIT_S = 20.0
INTERVAL_NS = int(look_interval_s(STALL_LIMIT_S) * NS_PER_S)
Signs = Callable[[int], Sign]


class Watch:
    """Looks at one actor for a while."""

    def __init__(self, stopped: bool = False) -> None:
        self.now_ns = 0
        self._watchdog = Watchdog(STALL_LIMIT_S, STEP_LIMIT_S, lambda pid: stopped)

    def until_found(
        self, signs: Signs, seconds: float, *, starting: bool = False, epoch: int = 1
    ) -> tuple[float, Hang] | None:
        """When the actor was found to hang, and why; None if it was not within this time."""
        began_ns = self.now_ns
        while self.now_ns - began_ns < seconds * NS_PER_S:
            self._watchdog.begin_look(self.now_ns)
            hang = self._watchdog.look("a", epoch, 1, signs(self.now_ns), starting=starting)
            if hang is not None:
                return (self.now_ns - began_ns) / NS_PER_S, hang
            self.now_ns += INTERVAL_NS
        return None


def asleep(now_ns: int) -> Sign:
    """A loop with nothing to do, which comes round as seldom as it may."""
    return Sign(1 + now_ns // longest_sleep_ns(STALL_LIMIT_S), False)


def silent(now_ns: int) -> Sign:
    return Sign(5, False)


def in_step(now_ns: int) -> Sign:
    return Sign(5, True)


def unborn(now_ns: int) -> Sign:
    return Sign(0, False)


def test_an_actor_that_sleeps_is_left_alone_for_hours() -> None:
    assert Watch().until_found(asleep, 7200) is None


def test_a_loop_that_does_not_come_round_is_found_within_the_limit_and_a_second() -> None:
    found = Watch().until_found(silent, 60)
    assert found is not None
    assert STALL_LIMIT_S < found[0] <= STALL_LIMIT_S + 1
    assert found[1] == Hang("its loop has not come round for stall_limit_s = 2 s", is_own=True)


def test_an_hour_of_steps_that_take_almost_the_limit_is_no_hang() -> None:
    def slow_layers(now_ns: int) -> Sign:
        return Sign(1 + now_ns // int((STEP_LIMIT_S - 1) * NS_PER_S), True)

    assert Watch().until_found(slow_layers, 3600) is None


def test_a_step_that_stands_still_is_found_after_its_own_limit() -> None:
    found = Watch().until_found(in_step, 60)
    assert found is not None
    assert STEP_LIMIT_S < found[0] <= STEP_LIMIT_S + 1
    assert found[1] == Hang("its step has made no progress for step_limit_s = 20 s", is_own=True)


@pytest.mark.parametrize("signs", [silent, in_step, unborn])
def test_a_stopped_process_is_found_early_whatever_it_did(signs: Signs) -> None:
    found = Watch(stopped=True).until_found(signs, 60, starting=signs is unborn)
    assert found is not None
    assert STALL_LIMIT_S < found[0] <= STALL_LIMIT_S + 1
    assert found[1].reason.startswith("it is stopped and has made no progress for 2.")


def test_a_start_has_a_limit_of_its_own() -> None:
    assert Watch().until_found(unborn, 3600, starting=True) is None


def test_a_new_life_is_a_new_beginning() -> None:
    watch = Watch()
    assert watch.until_found(silent, STALL_LIMIT_S) is None
    assert watch.until_found(silent, STALL_LIMIT_S, epoch=2) is None


def test_time_in_which_the_launcher_was_stopped_does_not_count() -> None:
    watch = Watch()
    for _ in range(10):
        assert watch.until_found(asleep, 1) is None
        watch.now_ns += 3600 * NS_PER_S  # the whole machine was suspended
    assert watch.until_found(silent, 1) is None
