"""The gated activation against the formula in float64."""

import pytest
import torch

from pillion.kernels.silu_and_mul import silu_and_mul
from pillion.kernels.silu_and_mul.cases import SHAPES, TOLERANCES


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("num_rows", "ffn"), SHAPES)
def test_equals_the_formula(num_rows: int, ffn: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    gate_up = (torch.randn(num_rows, 2 * ffn, generator=generator) * 4).to(dtype)
    before = gate_up.clone()
    result = silu_and_mul(gate_up)
    assert result.shape == (num_rows, ffn)
    assert result.dtype == dtype
    assert torch.equal(gate_up, before)
    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = gate / (1 + (-gate).exp()) * up
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)
