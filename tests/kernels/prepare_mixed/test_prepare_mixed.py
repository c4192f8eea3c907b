"""Inputs of mixed batches against a loop over rows."""

import dataclasses

import pytest
import torch

from pillion.kernels.prepare_mixed import MixedRows, prepare_mixed
from pillion.kernels.prepare_mixed.cases import CASES, Case, Inputs

CPU = torch.device("cpu")


def prepare(inputs: Inputs) -> MixedRows:
    return prepare_mixed(*(getattr(inputs, field.name) for field in dataclasses.fields(inputs)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_a_loop_over_rows(case: Case) -> None:
    inputs = case.inputs(CPU)
    out = prepare(inputs)
    token = num_live = 0
    for row, (slot, start, count) in enumerate(inputs.rows.T.tolist()):
        computed, known = int(inputs.num_computed[slot]), int(inputs.num_known[slot])
        first = computed if start < 0 else start
        room = int(inputs.capacity[slot])
        live = count > 0 and not inputs.finished[slot] and first + count <= room
        if start < 0:
            live = live and computed + 1 == known
        num_live += live
        assert out.slots[row] == slot
        assert out.advance[row] == (count if live else 0)
        assert bool(out.valid[row]) == (live and first + count == known)
        length = first + count if live else 0
        assert out.decode_lens[row] == (length if start < 0 else 0)
        assert out.prefill_lens[row] == (0 if start < 0 else length)
        for position in range(first, first + count):
            if live:
                block = int(inputs.block_tables[slot, position // inputs.block_size])
                at = block * inputs.block_size + position % inputs.block_size
                assert out.input_ids[token] == inputs.token_table[slot, position]
                assert out.positions[token] == position
                assert out.slot_mapping[token] == at
            else:
                assert out.slot_mapping[token] == -1
            token += 1
        if count:
            assert out.last_tokens[row] == token - 1
    assert (out.slot_mapping[token:] == -1).all()
    assert len(out.slot_mapping) == token + case.num_padding_tokens
    assert num_live > 0 or case.num_decode + case.num_prefill < 2
