"""What a worker does when a step fails: who is named, what is dropped, and how it goes on."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.step_faults import MANY_FAILED_STEPS, EveryStepFails
from pillion.messages.codec import unpack_ids, unpack_int64
from pillion.messages.ids import FINISH_ERROR
from pillion.messages.steps import StepFailure, StepOutput
from pillion.runtime.errors import ConfigError

MakeRig = Callable[..., Any]


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(90), k=length)


def failure_of(output: StepOutput) -> StepFailure:
    assert output.failure is not None
    assert not output.sequence_ids
    assert not output.token_ids
    return output.failure


@pytest.mark.parametrize("steps_in_flight", [1, 2, 3])
def test_a_step_that_raises_is_answered_behind_those_before_it(
    make_rig: MakeRig, steps_in_flight: int
) -> None:
    rig = make_rig(steps_in_flight, ("gpu_worker:raise_in_layer=1:step=3",))
    first, second = prompt(5), prompt(7, 1)
    outputs = rig.run(
        rig.plan([(0, 0, 5)], new=[rig.new(0, first)], repeat=2),
        rig.plan([(1, 0, 7), (0,)], new=[rig.new(1, second)], repeat=9),
    )
    assert [(o.step_id, o.plan_id, o.execution) for o in outputs] == [
        (0, 0, 0),
        (1, 1, 0),
        (2, 1, 1),
        (3, 1, 2),
    ]
    assert [o.failure is None for o in outputs] == [True, True, True, False]
    failure = failure_of(outputs[-1])
    assert failure.message == "InjectedFault: layer 1 fails"
    assert unpack_int64(failure.sequence_ids) == [1000, 1010]
    assert not failure.device_lost
    assert rig.tokens(1000) == rig.model.greedy(first, 3)
    assert rig.tokens(1010) == rig.model.greedy(second, 2)
    assert len(rig.states.occupied()) == 0
    assert not rig.worker.finished
    assert rig.worker.counters["failed_steps"] == 1


def test_plans_that_built_on_it_are_dropped_until_a_fresh_one(make_rig: MakeRig) -> None:
    rig = make_rig(2, ("gpu_worker:raise_in_layer=0:step=1",))
    tokens = prompt(6)
    plans = [rig.plan([(0, 0, 6)], new=[rig.new(0, tokens)])]
    plans += [rig.plan([(0,)]) for _ in range(4)]
    outputs = rig.run(*plans)
    assert [o.plan_id for o in outputs] == [0, 1]
    assert rig.step([(0,)]) == []
    known = tokens + rig.tokens(1000)
    again = rig.new(0, known, num_prompt=6)
    rig.step([(0, 0, 7)], new=[again], repeat=4, fresh=True)
    assert rig.tokens(1000) == rig.model.greedy(tokens, 5)


def test_what_a_failed_step_wrote_is_not_read(make_rig: MakeRig) -> None:
    """Layer 0 has written its KV when layer 1 fails; the rows are computed again over the same blocks."""
    rig = make_rig(1, ("gpu_worker:raise_in_layer=1:step=0",))
    tokens, blocks = prompt(9), [3, 4, 5, 6]
    rig.step([(0, 0, 9)], new=[rig.new(0, tokens, blocks=blocks)])
    assert torch.isfinite(rig.kv_cache.layer(0)[3]).all()
    assert not torch.isfinite(rig.kv_cache.layer(1)[3]).any()
    rig.step([(0, 0, 9)], new=[rig.new(0, tokens, blocks=blocks[::-1])], repeat=5, fresh=True)
    assert rig.tokens(1000) == rig.model.greedy(tokens, 5)


def test_a_poisoned_row_is_the_only_one_that_fails(make_rig: MakeRig) -> None:
    rig = make_rig(1, ("gpu_worker:nan_in_row:token=91",))
    good, bad = prompt(5), [*prompt(4, 1), 91]
    new = [rig.new(0, good), rig.new(1, bad), rig.new(2, prompt(3, 2), temperature=1.0)]
    outputs = rig.step([(0, 0, 5), (1, 0, 5), (2, 0, 3)], new=new, repeat=3)
    assert list(outputs[0].finish) == [0, FINISH_ERROR, 0]
    assert "not finite" in outputs[0].errors[1]
    assert all(output.failure is None for output in outputs)
    assert rig.tokens(1000) == rig.model.greedy(good, 3)
    assert len(rig.tokens(1020)) == 3


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_a_lost_device_ends_the_worker_behind_its_last_word(
    make_rig: MakeRig, steps_in_flight: int
) -> None:
    rig = make_rig(steps_in_flight, ("gpu_worker:lose_device:step=1",))
    new = [rig.new(0, prompt(5)), rig.new(1, prompt(6, 1))]
    outputs = rig.run(rig.plan([(0, 0, 5)], new=new), rig.plan([(1, 0, 6)]))
    assert rig.worker.finished
    assert "DeviceLost" in repr(rig.worker.end_error)
    failure = failure_of(outputs[-1])
    assert failure.device_lost
    # A step that was launched and not collected may as well have done it, and nothing can tell.
    suspects = [1010] if steps_in_flight == 1 else [1000, 1010]
    assert unpack_int64(failure.sequence_ids) == suspects
    assert outputs[-1].plan_id == 2 - steps_in_flight
    assert outputs[-1].step_id == len(outputs) - 1


def test_the_device_fails_while_an_answer_is_awaited(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a CUDA error does, which is known long after its kernel was launched."""
    rig = make_rig(2)
    processor = rig.worker._output_processor
    collect = processor.collect

    def fail(pending: Any, step: Any, times: Any) -> StepOutput:
        if step.step_id == 1:
            raise RuntimeError("CUDA error: an illegal memory access\nwas encountered")
        return collect(pending, step, times)

    def is_lost(device: Device) -> bool:
        monkeypatch.setattr(processor, "collect", collect)
        return True

    monkeypatch.setattr(processor, "collect", fail)
    monkeypatch.setattr(Device, "is_lost", is_lost)
    outputs = rig.step([(0, 0, 5)], new=[rig.new(0, prompt(5))], repeat=9)
    assert [o.failure is None for o in outputs] == [True, False]
    failure = failure_of(outputs[1])
    assert failure.device_lost
    assert failure.message == "RuntimeError: CUDA error: an illegal memory access"
    assert unpack_int64(failure.sequence_ids) == [1000]
    assert rig.worker.finished


def test_new_sequences_are_named_if_they_could_not_be_seated(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    rig.step([(0, 0, 5)], new=[rig.new(0, prompt(5))])
    sampler = rig.worker._output_processor._sampler
    with monkeypatch.context() as broken:
        broken.setattr(sampler._choice, "add", lambda *_: 1 // 0)
        outputs = rig.step([(1, 0, 6), (0,)], new=[rig.new(1, prompt(6, 1))])
    failure = failure_of(outputs[0])
    assert failure.message.startswith("ZeroDivisionError: ")
    assert unpack_int64(failure.sequence_ids) == [1010]
    rig.step([(1, 0, 6)], new=[rig.new(1, prompt(6, 1))], fresh=True)
    assert rig.tokens(1010) == rig.model.greedy(prompt(6, 1), 1)


def test_an_error_that_no_sequence_can_have_caused_ends_the_worker(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    monkeypatch.setattr(rig.worker._steps._input_preparer, "apply", lambda plan: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        rig.step([])


def test_a_row_under_a_condition_fails_when_it_gets_there(make_rig: MakeRig) -> None:
    rig = make_rig(1, ("gpu_worker:raise_in_layer=0:position=8:times=1",))
    new = [rig.new(0, prompt(4)), rig.new(1, prompt(6, 1))]
    outputs = rig.step([(0, 0, 4), (1, 0, 6)], new=new, repeat=9)
    # Position 8 is an input of the step behind those that sampled the tokens at 6, 7 and 8.
    assert [o.failure is None for o in outputs] == [True] * 3 + [False]
    assert unpack_ids(outputs[0].slots) == [0, 1]


@pytest.mark.parametrize(
    "flag", ["gpu_worker:raise_in_lair=1", "gpu_worker:nan_in_row:moon=1"], ids=str
)
def test_a_flag_that_means_nothing_is_refused(make_rig: MakeRig, flag: str) -> None:
    with pytest.raises(ConfigError, match="knows no"):
        make_rig(1, (flag,))


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_if_a_step_with_known_input_fails_as_well_the_worker_ends(
    make_rig: MakeRig, steps_in_flight: int
) -> None:
    rig = make_rig(steps_in_flight, ("gpu_worker:raise_in_layer=1",))
    failures = []
    while not rig.worker.finished:
        assert len(failures) < MANY_FAILED_STEPS
        (output,) = rig.step([(0, 0, 5)], new=[rig.new(0, prompt(5), blocks=[3, 4])], fresh=True)
        failures.append(failure_of(output))
    assert [failure.device_lost for failure in failures] == [False] * 7 + [True]
    assert isinstance(rig.worker.end_error, EveryStepFails)
    assert str(rig.worker.end_error) == (
        "8 steps in a row, the first thus: InjectedFault: layer 1 fails;"
        " and one with known input: InjectedFault: layer 1 fails"
    )
    assert not rig.worker.has_worked


def test_however_many_requests_fail_the_worker_goes_on_if_it_can(make_rig: MakeRig) -> None:
    bad = 95  # is in no other prompt
    rig = make_rig(1, (f"gpu_worker:raise_in_layer=0:token={bad}",))
    tokens = prompt(9)
    rig.step([(0, 0, 9)], new=[rig.new(0, tokens, blocks=[0, 1, 2, 3])])
    content = rig.kv_cache.tensor[:2].clone()
    for _ in range(3 * MANY_FAILED_STEPS):
        (output,) = rig.step([(1, 0, 2)], new=[rig.new(1, [bad, 1], blocks=[5, 6])], fresh=True)
        assert not failure_of(output).device_lost
    assert not rig.worker.finished
    torch.testing.assert_close(rig.kv_cache.tensor[:2], content, equal_nan=True, rtol=0, atol=0)
    rig.step([(2, 0, 9)], new=[rig.new(2, tokens, blocks=[7, 8, 9, 10])], repeat=5, fresh=True)
    assert rig.tokens(1020) == rig.model.greedy(tokens, 5)
