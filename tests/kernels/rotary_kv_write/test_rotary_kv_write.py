"""Rotation against complex multiplication in float64, and stores token by token."""

import pytest
import torch

from pillion.kernels.rotary_kv_write import rotary_kv_write, rows_in_pool
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


def test_rows_found_in_another_layer_serve_all() -> None:
    case = Case(37, masked=(0, 5))
    expected, inputs = case.inputs(CPU, torch.float32), case.inputs(CPU, torch.float32)
    run(expected)
    pool = inputs.layer_kv._base
    assert pool is not None
    rows = rows_in_pool(pool[:, 0], inputs.slot_mapping)
    moved = torch.full_like(inputs.slot_mapping, -1)  # so that only the rows say where
    rotary_kv_write(
        inputs.q, inputs.k, inputs.v, inputs.cos_sin, inputs.layer_kv, moved, pool_rows=rows
    )
    assert torch.equal(
        inputs.layer_kv[:-1].nan_to_num(-1.0), expected.layer_kv[:-1].nan_to_num(-1.0)
    )
    assert pool[:, [0, 2]].isnan().all()


def test_rotated_keys_are_there_densely_too() -> None:
    inputs = Case(20, masked=(0, 5)).inputs(CPU, torch.float32)
    dense = torch.empty_like(inputs.k, memory_format=torch.contiguous_format)
    rotary_kv_write(
        inputs.q, inputs.k, inputs.v, inputs.cos_sin, inputs.layer_kv, inputs.slot_mapping,
        rotated_k=dense,
    )  # fmt: skip
    keys = rotated(inputs.k, inputs.cos_sin)
    torch.testing.assert_close(dense.double(), keys, rtol=1e-5, atol=1e-5)


def test_inputs_are_left_alone() -> None:
    inputs = Case(20).inputs(CPU, torch.float32)
    before = [tensor.clone() for tensor in (inputs.q, inputs.k, inputs.v)]
    run(inputs)
    assert all(map(torch.equal, before, (inputs.q, inputs.k, inputs.v)))
