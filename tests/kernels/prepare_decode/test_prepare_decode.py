"""Decode inputs against a loop over rows."""

import dataclasses

import pytest
import torch

from pillion.kernels.prepare_decode import prepare_decode
from pillion.kernels.prepare_decode.cases import CASES, Case, Inputs

CPU = torch.device("cpu")


def fields(inputs: Inputs) -> list[object]:
    return [getattr(inputs, field.name) for field in dataclasses.fields(inputs)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_a_loop_over_rows(case: Case) -> None:
    inputs = case.inputs(CPU)
    rows = prepare_decode(*fields(inputs))  # type: ignore[arg-type]
    num_valid = 0
    for row, slot in enumerate(inputs.slots.tolist()):
        computed = int(inputs.num_computed[slot])
        valid = (
            not inputs.finished[slot]
            and computed + 1 == inputs.num_known[slot]
            and computed < inputs.capacity[slot]
        )
        assert bool(rows.valid[row]) == bool(valid)
        assert int(rows.advance[row]) == int(valid)
        assert torch.equal(rows.block_table[row], inputs.block_tables[slot, : case.num_blocks])
        if not valid:
            assert rows.slot_mapping[row] == -1
            assert rows.seq_lens[row] == 0
            continue
        num_valid += 1
        block = int(inputs.block_tables[slot, computed // case.block_size])
        assert rows.input_ids[row] == inputs.token_table[slot, computed]
        assert rows.positions[row] == computed
        assert rows.seq_lens[row] == computed + 1
        assert rows.slot_mapping[row] == block * case.block_size + computed % case.block_size
    assert num_valid > 0 or case.num_rows < 2


def test_masked_rows_read_inside_the_tables() -> None:
    inputs = CASES[2].inputs(CPU)
    inputs.num_computed.fill_(inputs.token_table.shape[1])
    rows = prepare_decode(*fields(inputs))  # type: ignore[arg-type]
    assert not rows.valid.any()
    assert (rows.positions == 0).all()


def test_types_are_those_of_the_model_inputs() -> None:
    rows = prepare_decode(*fields(CASES[2].inputs(CPU)))  # type: ignore[arg-type]
    assert [tensor.dtype for tensor in rows] == [
        torch.int64,
        torch.int64,
        torch.int64,
        torch.int32,
        torch.bool,
        torch.int64,
        torch.int32,
    ]
