"""Embedded tokens against a loop over them."""

import dataclasses
from typing import Any

import pytest
import torch

from pillion.kernels.embed_tokens import embed_tokens
from pillion.kernels.embed_tokens.cases import CASES, Case, Inputs

CPU = torch.device("cpu")


def fields(inputs: Inputs) -> list[Any]:
    return [getattr(inputs, field.name) for field in dataclasses.fields(inputs)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_a_loop_over_tokens(case: Case) -> None:
    inputs = case.inputs(CPU, torch.float32)
    found = embed_tokens(*fields(inputs))
    assert found.x.shape == (case.num_tokens, case.hidden_size)
    assert found.cos_sin.shape == (case.num_tokens, 2, case.num_angles)
    assert (found.scaled is None) == (not case.has_gain)
    for row, (token, position) in enumerate(
        zip(inputs.input_ids.tolist(), inputs.positions.tolist(), strict=True)
    ):
        embedded = inputs.embedding_table[token].float()
        assert torch.equal(found.x[row], embedded)
        assert torch.equal(found.cos_sin[row], inputs.cos_sin_table[position])
        if found.scaled is not None and inputs.gain is not None:
            assert torch.equal(found.scaled.x[row], embedded * inputs.gain)
            torch.testing.assert_close(
                found.scaled.squares.sum(0)[row], embedded.square().sum(), rtol=1e-5, atol=0
            )
