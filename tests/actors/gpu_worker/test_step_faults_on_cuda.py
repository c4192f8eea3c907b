"""Steps that fail on a CUDA device, where others are in flight, and a device that is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_worker import TinyWorker, tiny_config

from pillion.actors.gpu_worker.step_faults import MANY_FAILED_STEPS, EveryStepFails
from pillion.actors.gpu_worker.warm_up import GREEDY
from pillion.messages.codec import unpack_int64
from pillion.messages.steps import StepFailure, StepOutput
from pillion.runtime.process import child_environment

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = "cuda"
FIRST, SECOND = [5, 9, 2, 44, 17], [31, 8, 8, 120]


def start(folder: Path, *flags: str) -> TinyWorker:
    return TinyWorker.start(tiny_config(folder, DEVICE, fault_flags=flags))


def failure_of(output: StepOutput) -> StepFailure:
    assert output.failure is not None
    return output.failure


def test_a_step_that_raises_is_answered_behind_those_before_it(tmp_path: Path) -> None:
    whole = start(tmp_path)
    new = [whole.new(0, FIRST, GREEDY), whole.new(1, SECOND, GREEDY)]
    whole.run([(0, 0, 5), (1, 0, 4)], new, repeat=12)
    rig = start(tmp_path, "gpu_worker:raise_in_layer=0:step=2")
    rig.give([(0, 0, 5)], [rig.new(0, FIRST, GREEDY)], repeat=2)
    outputs = rig.run([(0,), (1, 0, 4)], [rig.new(1, SECOND, GREEDY)], repeat=9)
    assert [output.failure is None for output in outputs] == [True, True, False]
    failure = failure_of(outputs[-1])
    assert failure.message == "InjectedFault: layer 0 fails"
    assert unpack_int64(failure.sequence_ids) == [0, 1]
    assert not failure.device_lost
    said = rig.tokens(0), rig.tokens(1)
    rig.generation = 1
    again = [rig.new(0, FIRST + said[0], GREEDY), rig.new(1, SECOND + said[1], GREEDY)]
    rows = [(slot, 0, len(tokens) + len(own)) for slot, tokens, own in
            ((0, FIRST, said[0]), (1, SECOND, said[1]))]  # fmt: skip
    rig.run(rows, again, repeat=8, fresh=True)
    for slot in (0, 1):
        found = rig.tokens(slot)
        assert len(found) >= 8
        assert found == whole.tokens(slot)[: len(found)]


def test_however_many_steps_fail_the_worker_goes_on_if_it_can(tmp_path: Path) -> None:
    whole = start(tmp_path)
    whole.run([(0, 0, 5)], [whole.new(0, FIRST, GREEDY)], repeat=6)
    rig = start(tmp_path, f"gpu_worker:raise_in_layer=0:times={MANY_FAILED_STEPS}")
    for _ in range(MANY_FAILED_STEPS):
        (output,) = rig.run([(0, 0, 5)], [rig.new(0, FIRST, GREEDY)], fresh=True)
        assert not failure_of(output).device_lost
        rig.generation += 1
    assert not rig.worker.finished
    rig.run([(0, 0, 5)], [rig.new(0, FIRST, GREEDY)], repeat=6, fresh=True)
    assert rig.tokens(0) == whole.tokens(0)


def test_if_a_step_with_known_input_fails_as_well_the_worker_ends(tmp_path: Path) -> None:
    rig = start(tmp_path, "gpu_worker:raise_in_layer=0")
    lost = []
    for _ in range(MANY_FAILED_STEPS):
        (output,) = rig.run([(0, 0, 5)], [rig.new(0, FIRST, GREEDY)], fresh=True)
        lost.append(failure_of(output).device_lost)
        rig.generation += 1
    assert lost == [False] * (MANY_FAILED_STEPS - 1) + [True]
    assert isinstance(rig.worker.end_error, EveryStepFails)


def test_a_broken_device_is_told_from_a_step_that_fails(tmp_path: Path) -> None:
    """In a process of its own, which can use the device no more afterwards."""
    script = Path(__file__).with_name("broken_device.py")
    environment = child_environment()
    paths = [str(script.parent / "models"), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    done = subprocess.run(
        [sys.executable, "-P", str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["finished"]
    assert found["device_lost"] == [True]
    assert found["sequence_ids"] == [[0]]
