"""What is run before the end of a captured step is captured; whose turn it is."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pillion.actors.gpu_worker.captured_ends import CapturedEnds, EndCapturer, capturing
from pillion.actors.gpu_worker.sampling.step_end import End, EndResult, EndRows

NOWHERE = 1 << 40


@torch.inference_mode()
@pytest.mark.parametrize("end", End)
def test_a_masked_run_reads_no_slots_and_changes_nothing(end: End, make_rig: Any) -> None:
    """The rows of a step that was never replayed hold what others have left in their memory."""
    rig = make_rig()
    rig.step([(0, 0, 3)], new=[rig.new(0, [1, 2, 3], temperature=0.9, presence_penalty=0.5)])
    steps = rig.worker._steps
    states, sampler = steps._states, steps._output_processor._sampler

    def tables() -> list[torch.Tensor]:
        """But for the scratch slot, which is there for masked rows to write to."""
        all_slots = (*states.tables(), sampler.tables().edits.token_counts)
        return [table[: states.max_num_seqs].clone() for table in all_slots]

    rows = EndRows(
        torch.full((3,), NOWHERE), torch.ones(3, dtype=torch.bool), torch.full((3,), NOWHERE)
    )
    before, computed = tables(), states.num_computed.clone()
    result = EndCapturer(states, sampler, None).run_masked(end, torch.randn(3, 97), rows)
    assert not result.columns[3].any()
    assert all(torch.equal(*pair) for pair in zip(before, tables(), strict=True))
    assert torch.equal(states.num_computed, computed)  # the scratch slot's goes nowhere either


def test_a_capture_that_breaks_off_leaves_the_stream_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch's way out of a capture stays on its stream if the capture cannot be ended."""
    current = ["steps"]

    class Graph:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def __enter__(self) -> None:
            current[0] = "captures"

        def __exit__(self, *_: object) -> None:
            raise RuntimeError("invalid capture")

    monkeypatch.setattr(torch.cuda, "graph", Graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: current.__setitem__(0, stream))
    nothing: Any = None
    with pytest.raises(RuntimeError, match="invalid capture"), capturing(nothing, None):
        raise torch.OutOfMemoryError
    assert current == ["steps"]


@torch.inference_mode()
@pytest.mark.parametrize("steps_in_flight", [1, 2, 3])
def test_no_step_in_flight_has_the_result_of_another(
    steps_in_flight: int, make_rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of one step's result to the host may take place when those behind it are launched."""
    steps = make_rig().worker._steps
    capturer = EndCapturer(
        steps._states, steps._output_processor._sampler, None, steps_in_flight=steps_in_flight
    )

    def capture(self: EndCapturer, *arguments: Any) -> Any:
        return SimpleNamespace(graph=SimpleNamespace(replay=lambda: None), result=arguments[-1])

    monkeypatch.setattr(EndCapturer, "capture", capture)
    slots, nothing = torch.full((2,), NOWHERE), torch.zeros(2, dtype=torch.bool)
    ends = CapturedEnds(capturer, torch.randn(2, 97), EndRows(slots, nothing, slots))
    found: list[EndResult] = [ends.replay(End.GREEDY) for _ in range(2 * steps_in_flight)]
    assert len({id(each) for each in found[:steps_in_flight]}) == steps_in_flight
    assert all(a is b for a, b in zip(found, found[steps_in_flight:], strict=False))
