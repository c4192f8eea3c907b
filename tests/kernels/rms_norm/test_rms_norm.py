"""RMS normalization against the formula in float64."""

import pytest
import torch

from pillion.kernels.rms_norm import rms_norm, rms_norm_add
from pillion.kernels.rms_norm.cases import SHAPES, TOLERANCES

EPS = 1e-5


def formula(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("leading", "hidden_size"), SHAPES)
def test_equals_the_formula(leading: tuple[int, ...], hidden_size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(*leading, hidden_size, generator=generator).to(dtype) * 3
    weight = torch.randn(hidden_size, generator=generator).to(dtype)
    before = x.clone()
    result = rms_norm(x, weight, EPS)
    assert result.dtype == dtype
    assert torch.equal(x, before)
    torch.testing.assert_close(
        result.double(), formula(x, weight), rtol=2 * TOLERANCES[dtype], atol=TOLERANCES[dtype]
    )


def test_takes_a_strided_view_without_writing_to_it() -> None:
    qkv = torch.randn(4, 6, 64)
    before = qkv.clone()
    result = rms_norm(qkv[:, :3], torch.ones(64), EPS)
    torch.testing.assert_close(
        result.double(), formula(qkv[:, :3], torch.ones(64)), rtol=1e-5, atol=1e-6
    )
    assert torch.equal(qkv, before)


def test_a_row_of_zeros_stays_zero() -> None:
    assert torch.equal(rms_norm(torch.zeros(2, 8), torch.ones(8), EPS), torch.zeros(2, 8))


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_add_returns_the_sum_and_its_norm(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x, residual = torch.randn(2, 5, 96, generator=generator).to(dtype).unbind(0)
    weight = torch.randn(96, generator=generator).to(dtype)
    expected = x + residual
    normed, total = rms_norm_add(x, residual, weight, EPS)
    assert torch.equal(total, expected)
    assert torch.equal(normed, rms_norm(expected, weight, EPS))


def test_a_float32_stream_has_branches_of_the_weights_type() -> None:
    generator = torch.Generator().manual_seed(5)
    residual = torch.randn(5, 96, generator=generator)
    x, weight = torch.randn(6, 96, generator=generator).bfloat16().split((5, 1))
    weight = weight[0]
    expected = x + residual
    normed, total = rms_norm_add(x, residual, weight, EPS)
    assert (normed.dtype, total.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(total, expected)
    torch.testing.assert_close(normed.double(), formula(expected, weight), rtol=2**-6, atol=2**-7)
