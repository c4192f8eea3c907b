"""Rotation against complex multiplication in float64, and stores token by token."""

import pytest
import torch

from pillion.kernels.rotary_kv_write import rotary_kv_write
from pillion.kernels.rotary_kv_write.cases import CASES, TOLERANCES, Case, Inputs

CPU = torch.device("cpu")


def rotated(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """Pairs of elements as complex numbers, turned by their angles."""
    half = cos_sin.shape[-1]
    x = x.double()
    turn = torch.complex(cos_sin[:, 0].double(), cos_sin[:, 1].double())[:, None]
    turned = torch.complex(x[..., :half], x[..., half : 2 * half]) * turn
    return torch.cat([turned.real, turned.imag, x[..., 2 * half :]], dim=-1)


def run(inputs: Inputs) -> torch.Tensor:
    return rotary_kv_write(
        inputs.q, inputs.k, inputs.v, inputs.cos_sin, inputs.layer_kv, inputs.slot_mapping
    )


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_rotates_queries_and_stores_keys_and_values(case: Case, dtype: torch.dtype) -> None:
    inputs = case.inputs(CPU, dtype)
    expected = torch.full(inputs.layer_kv.shape, float("nan"), dtype=torch.float64)
    keys = rotated(inputs.k, inputs.cos_sin)
    for token, place in enumerate(inputs.slot_mapping.tolist()):
        if place >= 0:
            block, offset = divmod(place, case.block_size)
            expected[block, 0, :, offset] = keys[token]
            expected[block, 1, :, offset] = inputs.v[token].double()
    queries = rotated(inputs.q, inputs.cos_sin)

    out = run(inputs)
    assert out.dtype == dtype
    assert out.shape == inputs.q.shape
    limits = {"rtol": TOLERANCES[dtype], "atol": 4 * TOLERANCES[dtype]}
    torch.testing.assert_close(out.double(), queries, **limits)
    # The last block is scratch: anything may be there.
    torch.testing.assert_close(
        inputs.layer_kv[:-1].double(), expected[:-1], equal_nan=True, **limits
    )


def test_other_layers_are_left_alone() -> None:
    inputs = Case(20).inputs(CPU, torch.float32)
    run(inputs)
    pool = inputs.layer_kv._base
    assert pool is not None
    assert pool[:, [0, 2]].isnan().all()


def test_inputs_are_left_alone() -> None:
    inputs = Case(20).inputs(CPU, torch.float32)
    before = [tensor.clone() for tensor in (inputs.q, inputs.k, inputs.v)]
    run(inputs)
    assert all(map(torch.equal, before, (inputs.q, inputs.k, inputs.v)))
