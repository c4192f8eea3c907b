"""The state's update against a loop over rows."""

import dataclasses

import pytest
import torch

from pillion.kernels.update_rows import (
    FAILED,
    GOES_ON,
    LENGTH_REACHED,
    STOPPED,
    update_rows,
)
from pillion.kernels.update_rows.cases import CASES, Case, Inputs
from pillion.messages import ids

CPU = torch.device("cpu")


def run(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    return update_rows(*(getattr(inputs, field.name) for field in dataclasses.fields(inputs)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_a_loop_over_rows(case: Case) -> None:
    inputs, before = case.inputs(CPU), case.inputs(CPU)
    positions, finish = run(inputs)
    assert finish.dtype == torch.uint8
    seen = set()
    for row, slot in enumerate(before.slots.tolist()):
        token, known = int(before.token_ids[row]), int(before.num_known[slot])
        code = GOES_ON
        if before.valid[row]:
            if before.failed[row]:
                code = FAILED
            else:
                before.token_table[slot, known] = token
                before.num_known[slot] = known + 1
                assert positions[row] == known
                if token in before.stop_ids[slot].tolist():
                    code = STOPPED
                elif known + 1 == before.max_total[slot]:
                    code = LENGTH_REACHED
            before.finished[slot] = code != GOES_ON
        assert finish[row] == code
        seen.add(code)
    assert case.num_rows < 64 or seen == {GOES_ON, STOPPED, LENGTH_REACHED, FAILED}
    # The last slot is scratch, and stays finished.
    assert torch.equal(inputs.token_table[:-1], before.token_table[:-1])
    assert torch.equal(inputs.num_known[:-1], before.num_known[:-1])
    assert torch.equal(inputs.finished, before.finished)


def test_codes_are_those_on_the_wire() -> None:
    assert (GOES_ON, STOPPED, LENGTH_REACHED, FAILED) == (
        ids.FINISH_NONE,
        ids.FINISH_STOP,
        ids.FINISH_LENGTH,
        ids.FINISH_ERROR,
    )
