"""docs/monitoring.md names what a page of metrics has, and nothing else."""

import re
from pathlib import Path

import pytest
from fake_launcher import FakeLauncher
from metrics_reader import read_page

from pillion.actors.gateway.metrics_page import metrics_page
from pillion.messages.control import ActorStats
from pillion.runtime.config import EngineConfig

TEXT = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text()
EXPLAINED, ABSENT = TEXT.split("\nAbsent, ", 1)


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`((?:pillion_|vllm:|process_|http_)\w+)(?![\w<*])[^`]*`", text))


@pytest.fixture(scope="module")
def families() -> set[str]:
    # What a worker on a CUDA device says besides what all actors do.
    captures: dict[str, int | float | str] = {"graphs": 7, "graphs_left": 30}
    launcher = FakeLauncher()
    launcher.report(ActorStats(actor="gpu_worker", epoch=1, counters={}, gauges=captures))
    page = metrics_page(launcher.status(), EngineConfig(model="m"), "m", ready=True).decode()
    read_page(page)
    return set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))


def test_every_metric_is_explained(families: set[str]) -> None:
    assert families - names_in(EXPLAINED) == set()


def test_every_metric_that_is_explained_exists(families: set[str]) -> None:
    assert names_in(EXPLAINED) - families == set()


def test_what_is_said_to_be_absent_is(families: set[str]) -> None:
    patterns = re.findall(r"`(vllm:[\w*]+)`", ABSENT)
    assert patterns
    for pattern in patterns:
        matching = re.compile(pattern.replace("*", r"\w*"))
        assert not [name for name in families if matching.fullmatch(name)], pattern
