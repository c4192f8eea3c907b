"""What is run before the end of a captured step is captured."""

from typing import Any

import pytest
import torch

from pillion.actors.gpu_worker.captured_ends import EndCapturer
from pillion.actors.gpu_worker.sampling.step_end import End, EndRows

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
    before = tables()
    result = EndCapturer(states, sampler, None).run_masked(end, torch.randn(3, 97), rows)
    assert not result.columns[3].any()
    assert all(torch.equal(*pair) for pair in zip(before, tables(), strict=True))
