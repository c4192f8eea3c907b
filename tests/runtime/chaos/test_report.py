"""What a run says at its end."""

import json
from dataclasses import replace
from pathlib import Path

from pillion.runtime.chaos.report import ChaosReport, FoundFault
from pillion.runtime.chaos.strikes import Blow

RIGHT = ChaosReport(
    settings={"seed": 1},
    num_requests=10,
    num_distinct=5,
    undisturbed_s=1.0,
    disturbed_s=2.0,
    blows=[Blow("scheduler", False, 0), Blow("scheduler", True, 1), Blow("gpu_worker", False, 2)],
    faults=[],
    num_without_end=0,
    restarts={"scheduler": 2},
    left_open={},
    pauses={"scheduler": [0.25, 0.5, 0.75]},
    daemon_failure=None,
)


def test_the_figures(tmp_path: Path) -> None:
    assert RIGHT.is_right
    RIGHT.write_json(tmp_path / "r.json")
    data = json.loads((tmp_path / "r.json").read_text())
    assert (data["kills"], data["stops"], data["lost"], data["changed"]) == (2, 1, 0, 0)
    assert data["blow_to_next_token_s"]["scheduler"] == {"median": 0.5, "p99": 0.75, "streams": 3}
    assert data["blows_per_actor"] == {"scheduler": 1, "scheduler (stopped)": 1, "gpu_worker": 1}
    assert RIGHT.text().endswith("all is right")


def test_anything_wrong_is_said() -> None:
    fault = FoundFault(3, "greedy", "repeated", "from token 2 on")
    for wrong in (
        replace(RIGHT, faults=[fault]),
        replace(RIGHT, num_without_end=1),
        replace(RIGHT, left_open={"scheduler open": 2.0}),
        replace(RIGHT, daemon_failure="it is gone"),
    ):
        assert not wrong.is_right
        assert wrong.text().endswith("something is WRONG")
    text = replace(RIGHT, faults=[fault] * 30).text()
    assert "request 3 (greedy) repeated: from token 2 on" in text
    assert "and 10 more" in text
    assert "repeated 30" in text
