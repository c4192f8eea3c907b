"""Graphs that are captured between steps, on a card: the answers are those of a worker that was ready with all."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from tiny_worker import BLOCKS_EACH, TinyWorker, tiny_config

from pillion.actors.gpu_worker import late_graphs, start_up
from pillion.actors.gpu_worker.cuda_graphs import GraphCapturer
from pillion.actors.gpu_worker.mixed_table import GraphSize, MixedShape
from pillion.actors.gpu_worker.model_executor import ModelExecutor, ModelOutput
from pillion.actors.gpu_worker.start_up import start_worker
from pillion.actors.gpu_worker.step_inputs import StepInputs
from pillion.actors.gpu_worker.warm_up import GREEDY
from pillion.runtime.process import child_environment

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = "cuda"
NUM_SEQS = 40
# What is captured before the worker is ready, and what is left.
NUM_FIRST, NUM_LEFT = 8, 7
WAVES = ((3, 20), (8, 40), (8, 40), (1, 1), (12, 5))  # prompts that come together, their tokens
NUM_ROWS = sum(count for count, _ in WAVES)
STAYING = range(NUM_ROWS - 12, NUM_ROWS)

Start = Callable[[bool], TinyWorker]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """A worker that is ready with a few graphs, or with all."""
    config = tiny_config(
        tmp_path,
        DEVICE,
        max_num_seqs=NUM_SEQS,
        max_num_batched_tokens=512,
        num_kv_blocks=NUM_SEQS * BLOCKS_EACH,
        tuning_seconds=0.0,
    )

    def start(few: bool) -> TinyWorker:
        monkeypatch.setattr(start_up, "has_compiled", lambda _: few)
        return TinyWorker.start(config)

    return start


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[GraphSize]:
    """What is captured from now on, in this order."""
    captured: list[GraphSize] = []
    capture = GraphCapturer.capture

    def noted(self: GraphCapturer, size: GraphSize) -> None:
        capture(self, size)
        captured.append(size)

    monkeypatch.setattr(GraphCapturer, "capture", noted)
    return captured


def give_load(rig: TinyWorker) -> None:
    """Prompts beside streams, and fewer streams in the end: every plan is there before the first one runs."""
    num_seated = 0
    for count, length in WAVES:
        slots = range(num_seated, num_seated + count)
        new = [
            rig.new(
                slot,
                [(slot * 31 + position * 7) % 160 for position in range(length)],
                replace(GREEDY, temperature=0.8, seed=slot) if slot % 3 == 0 else GREEDY,
            )
            for slot in slots
        ]
        rig.give(
            [*((slot,) for slot in range(num_seated)), *((slot, 0, length) for slot in slots)], new
        )
        num_seated += count
        for _ in range(3):
            rig.give([(slot,) for slot in range(num_seated)])
    for _ in range(5):
        rig.give([(slot,) for slot in STAYING])


def serve(rig: TinyWorker) -> list[list[int]]:
    """The answers to that load; the slots are free afterwards."""
    give_load(rig)
    outputs = rig.rest()
    assert not any(output.failure or output.errors for output in outputs)
    answers = [rig.tokens(slot) for slot in range(NUM_ROWS)]
    rig.run([], released=range(NUM_ROWS))
    rig.generation += 1
    rig.outputs.clear()
    return answers


@pytest.mark.parametrize("period_ns", [late_graphs._PERIOD_NS, 0])
def test_a_mixed_load_while_graphs_are_captured(
    period_ns: int,
    start: Start,
    captured: list[GraphSize],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With no time between two captures, each plan is behind one, while a step is launched."""
    monkeypatch.setattr(late_graphs, "_PERIOD_NS", period_ns)
    whole = start(False)
    assert whole.worker.gauges["graphs_left"] == 0
    expected, again = serve(whole), serve(whole)
    rig = start(True)
    assert rig.worker.gauges["graphs"] == NUM_FIRST
    assert rig.worker.gauges["graphs_left"] == NUM_LEFT
    # Both were computed by now: steps without a graph are padded to them.
    assert [*rig.worker._steps._input_preparer._graphs.sample_rows] == [16, NUM_SEQS]
    captured.clear()
    assert serve(rig) == expected
    assert {16, 24, 32, MixedShape(384, 40, 8)} <= {*captured}
    rig.idle()
    assert len(captured) == len({*captured}) == NUM_LEFT
    assert rig.worker.gauges["graphs"] == NUM_FIRST + NUM_LEFT
    assert rig.worker.gauges["graphs_left"] == 0
    assert serve(rig) == again
    # All steps that were captured there were captured here too.
    for counter in ("steps", "graph_steps"):
        assert rig.worker.counters[counter] == whole.worker.counters[counter]


def test_captures_take_place_behind_launched_steps(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is what the test above is about."""
    monkeypatch.setattr(late_graphs, "_PERIOD_NS", 0)
    rig = start(True)
    num_launched: list[int] = []
    capture = GraphCapturer.capture

    def noted(self: GraphCapturer, size: GraphSize) -> None:
        num_launched.append(rig.worker._steps.num_launched)
        capture(self, size)

    monkeypatch.setattr(GraphCapturer, "capture", noted)
    serve(rig)
    assert sum(count > 0 for count in num_launched) >= 3


def test_a_step_of_200_rows_right_behind_the_start(
    tmp_path: Path, captured: list[GraphSize], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(
        tmp_path,
        DEVICE,
        max_num_seqs=256,
        max_num_batched_tokens=1024,
        num_kv_blocks=256 * BLOCKS_EACH,
        tuning_seconds=0.0,
    )
    answers = []
    for few in (False, True):
        monkeypatch.setattr(start_up, "has_compiled", lambda _, few=few: few)
        worker, _ = start_worker(config, 1, lambda phase: None)
        captured.clear()
        rig, slots = TinyWorker(worker), range(200)
        rig.run(
            [(slot, 0, 5) for slot in slots],
            [rig.new(slot, [slot % 160] * 5, GREEDY) for slot in slots],
        )
        rig.run([(slot,) for slot in slots], repeat=4)
        answers.append([rig.tokens(slot) for slot in slots])
        assert worker.counters["graph_steps"] == 4
        if few:
            assert captured[0] == 224
            rig.run([(slot,) for slot in range(60)])
            assert worker.counters["graph_steps"] == 5
            rig.idle()
            # 60 rows took the graph of 224, so theirs is the next.
            assert captured[:3] == [224, 64, 16]
    assert answers[0] == answers[1]
    assert all(len(answer) == 5 for answer in answers[0])


@pytest.mark.parametrize("is_out_of_memory", [True, False])
def test_a_capture_that_breaks_off(
    is_out_of_memory: bool,
    start: Start,
    captured: list[GraphSize],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without memory steps go on without graphs. Any other error is the step's, and the next ones go on."""
    expected = serve(start(False))
    rig = start(True)
    captured.clear()
    stream = torch.cuda.current_stream()
    execute = ModelExecutor.execute

    def broken(
        self: ModelExecutor, inputs: StepInputs, logits: torch.Tensor | None = None
    ) -> ModelOutput:
        if torch.cuda.is_current_stream_capturing():
            kind = torch.OutOfMemoryError if is_out_of_memory else ValueError
            raise kind("CUDA out of memory" if is_out_of_memory else "no such size")
        return execute(self, inputs, logits)

    monkeypatch.setattr(ModelExecutor, "execute", broken)
    if not is_out_of_memory:
        slots = range(9)
        new = [rig.new(slot, [slot], GREEDY) for slot in slots]
        rig.run([(slot, 0, 1) for slot in range(8)], new[:8])
        outputs = rig.run([*((slot,) for slot in range(8)), (8, 0, 1)], new[8:], repeat=2)
        failures = [output.failure for output in outputs if output.failure is not None]
        assert [failure.message for failure in failures] == ["ValueError: no such size"]
        assert not failures[0].device_lost
        rig.generation += 1
        rig.outputs.clear()
        rig.run([], fresh=True)
    with caplog.at_level(logging.WARNING):
        assert serve(rig) == expected
    assert not captured
    assert torch.cuda.current_stream() == stream
    assert sum("no memory for the graph of" in line for line in caplog.messages) == is_out_of_memory
    rig.idle()
    assert rig.worker.gauges["graphs_left"] == NUM_LEFT


def test_a_start_that_compiles_nothing_is_ready_with_few_and_compiles_none_late(
    tmp_path: Path,
) -> None:
    """Two starts in processes of their own: the first one finds no kernel, the second one all."""
    script = Path(__file__).with_name("late_start.py")
    environment = child_environment()
    paths = [str(script.parent / "models"), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "kernels")

    def started(what: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-P", str(script), str(tmp_path), what],
            capture_output=True,
            text=True,
            env=environment,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    first = started("start")
    assert first["ready"]["graphs_left"] == 0
    second = started("serve")
    num_graphs = first["ready"]["graphs"]
    assert 0 < second["ready"]["graphs"] < num_graphs / 2
    assert second["ready"]["graphs_bytes"] == second["graphs_bytes"]
    assert second["end"]["graphs"] == num_graphs
    assert second["late"] == []
    # How much it is depends on who else uses the card meanwhile.
    assert 0 < second["end"]["graphs_bytes"] >= second["graphs_bytes"]
