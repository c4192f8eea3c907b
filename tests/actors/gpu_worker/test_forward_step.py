"""How long a step's other rows wait for masks."""

from types import SimpleNamespace
from typing import Any

from pillion.actors.gpu_worker.forward_step import MaskPatience
from pillion.runtime.clock import NS_PER_MS

STEP_NS = 10 * NS_PER_MS


def forward(executed_ns: int) -> Any:
    return SimpleNamespace(executed_ns=executed_ns)


def test_they_wait_for_half_a_step() -> None:
    patience = MaskPatience(launches_queue=True)
    for step in range(3):
        patience.note_collected((step - 1) * STEP_NS, (step + 1) * STEP_NS)
    at = 3 * STEP_NS
    assert not patience.is_over(forward(at - STEP_NS), at + STEP_NS // 2 - 1)
    assert patience.is_over(forward(at - STEP_NS), at + STEP_NS // 2)


def test_time_without_requests_is_no_step() -> None:
    """Neither before the second step of all nor later."""
    patience, at = MaskPatience(launches_queue=True), 0
    for idle_s in (3600, 1000, 0, 5000):
        at += idle_s * 1000 * NS_PER_MS
        patience.note_collected(at, at + STEP_NS)
        at += STEP_NS
    assert patience.is_over(forward(at), at + STEP_NS // 2)


def test_a_step_that_took_long_counts_for_little() -> None:
    patience, at = MaskPatience(launches_queue=True), 0
    for took_ns in (STEP_NS, 100 * STEP_NS):
        patience.note_collected(at, at + took_ns)
        at += took_ns
    assert patience.is_over(forward(at), at + STEP_NS)


def test_where_a_launch_is_the_computation_nobody_waits() -> None:
    patience = MaskPatience(launches_queue=False)
    patience.note_collected(0, STEP_NS)
    assert patience.is_over(forward(STEP_NS), STEP_NS)
