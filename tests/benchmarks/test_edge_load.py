"""The benchmark of text edge and client runs without a worker, streamed and whole."""

import os

import pytest
from edge_load import Load, measure


@pytest.mark.model
@pytest.mark.parametrize("whole", [False, True])
def test_answers_come_whole_and_their_steps_are_timed(whole: bool) -> None:
    cores = os.sched_getaffinity(0)
    try:
        rounds = list(measure("smollm2", Load(rows=8, output=24, step_us=2000), 2, whole))
    finally:
        os.sched_setaffinity(0, cores)
    assert len(rounds) == 2
    for found in rounds:
        assert found["tail ms"] > 0
        # Steps cannot seem shorter than they are, but for what the first ones were late.
        assert whole or 0.5 < found["bubble"] < 20
