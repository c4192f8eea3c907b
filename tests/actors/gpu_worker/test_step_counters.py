"""The bubble: time without a launched step while a sequence could go on."""

from typing import Any

import pytest

from pillion.actors.gpu_worker import step_pipeline
from pillion.messages.control import PeerRestarted

PROMPT = [1, 2, 3]
PAUSE_NS = 5_000_000


class Clock:
    """Stands still but for pauses."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns

    def pause(self) -> None:
        self.now_ns += PAUSE_NS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(step_pipeline, "clock_ns", clock)
    return clock


def bubble_ns(rig: Any) -> int:
    return int(rig.worker.counters["bubble_ns"])


def test_a_plan_that_comes_late_is_a_bubble(rig: Any, clock: Clock) -> None:
    rig.step([(0, 0, 3)], new=[rig.new(0, PROMPT)])
    clock.pause()
    rig.step([(0,)], repeat=3)
    assert bubble_ns(rig) == PAUSE_NS
    assert rig.worker.counters["steps"] == 4


def test_a_prompt_that_is_half_read_waits(rig: Any, clock: Clock) -> None:
    rig.step([(0, 0, 2)], new=[rig.new(0, PROMPT)])
    clock.pause()
    rig.step([(0, 2, 3)])
    assert bubble_ns(rig) == PAUSE_NS


def test_nobody_waits_behind_the_last_answer(rig: Any, clock: Clock) -> None:
    rig.step([(0, 0, 3)], new=[rig.new(0, PROMPT, max_tokens=1)])
    clock.pause()
    rig.step([(1, 0, 3)], new=[rig.new(1, PROMPT)])
    assert bubble_ns(rig) == 0


def test_nobody_waits_behind_a_release(rig: Any, clock: Clock) -> None:
    rig.step([(0, 0, 3)], new=[rig.new(0, PROMPT)])
    rig.step([], released=[0])
    clock.pause()
    rig.step([(0, 0, 3)], new=[rig.new(0, PROMPT, generation=1)])
    assert bubble_ns(rig) == 0


def test_a_new_scheduler_begins_without_a_bubble(rig: Any, clock: Clock) -> None:
    rig.step([(0, 0, 3)], new=[rig.new(0, PROMPT)])
    rig.worker.on_message(PeerRestarted(actor="scheduler", epoch=2), 0)
    clock.pause()
    rig.epoch, rig.next_plan_id = 2, 0
    rig.step([(0, 0, 3)], new=[rig.new(0, PROMPT)], fresh=True)
    assert bubble_ns(rig) == 0


def test_two_steps_in_flight_leave_no_bubble(make_rig: Any, clock: Clock) -> None:
    rig = make_rig(steps_in_flight=2)
    new = [rig.new(0, PROMPT)]
    rig.worker.on_message(rig.plan([(0, 0, 3)], new=new, repeat=9), 0)
    for _ in range(4):
        rig.worker.tick(0)
        clock.pause()
    assert bubble_ns(rig) == 0
