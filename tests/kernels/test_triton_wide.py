"""Products on a `Scaled` stream against the reference, and the library's products on the same stream."""

import pytest
import torch

pytest.importorskip("triton")

from pillion.kernels.fused_linear import composed, reference
from pillion.kernels.fused_linear import wide_impl as wide
from pillion.kernels.fused_linear.cases import WIDE_CASES, WideCase
from pillion.kernels.paged_attention.triton_decode import has_pdl

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative error in the Euclidean norm."""
    return float((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30))


@pytest.mark.parametrize("pdl", [False, True], ids=["alone", "pdl"])
@pytest.mark.parametrize("case", WIDE_CASES, ids=str)
def test_wide_linear(device: torch.device, case: WideCase, pdl: bool) -> None:
    if pdl and not has_pdl(device):
        pytest.skip("compute capability 9.0 and up")
    torch.manual_seed(case.num_rows)
    # The interpreter's bfloat16 is not the hardware's.
    dtype, bound = (torch.bfloat16, 8e-3) if device.type == "cuda" else (torch.float32, 2e-5)
    rows, hidden, dim, tile = case.num_rows, case.hidden, case.head_dim, case.tile

    def randn(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, device=device) * shape[-1] ** -0.5).to(dtype)

    def bias_of(weight: torch.Tensor) -> torch.Tensor | None:
        return randn(len(weight)) if case.has_bias else None

    gain = (torch.rand(hidden, device=device) + 0.5).to(dtype)
    stream, wanted = (randn(rows, hidden) * 9 for _ in range(2))
    wanted.copy_(stream)
    down, gated = randn(hidden, case.ffn), randn(rows, case.ffn)
    bias = bias_of(down)
    # Twice, since the counters of splits have to return to zero.
    for _ in range(2):
        scaled = wide.linear_add(gated, down, bias, stream, gain, tile, pdl=pdl)
        reference.linear_add(gated, down, bias, wanted)
    assert error(stream, wanted) < bound
    alone = wide.scale(stream, gain, pdl=pdl)
    assert scaled is not None
    assert error(scaled.x, alone.x) < bound
    assert error(scaled.squares.sum(0), alone.squares.sum(0)) < bound
    assert wide.linear_add(gated, down, bias, wanted.clone(), None, tile, pdl=pdl) is None

    gate_up = randn(2 * case.ffn, hidden)
    want = reference.norm_gated_linear(stream, gain, 1e-5, gate_up)
    for given in (scaled, alone):
        got = wide.norm_gated_linear(given, 1e-5, gate_up, tile, pdl=pdl)
        assert error(got, want) < bound
    got = composed.norm_gated_linear(stream, gain, 1e-5, gate_up, scaled)
    assert error(got, want) < bound

    got = wide.linear_float32(stream, gate_up, None, tile, pdl=pdl)
    assert got.dtype == torch.float32
    assert error(got, reference.linear_float32(stream, gate_up)) < bound

    qkv = randn((case.num_q_heads + 2 * case.num_kv_heads) * dim, hidden)
    bias = bias_of(qkv)
    angles = torch.rand(rows, dim // 2, device=device)
    cos_sin = torch.stack([angles.cos(), angles.sin()], dim=1)
    slots = torch.randperm(13 * 16, device=device)[:rows]
    slots[0] = -1
    shape = (14, 2, case.num_kv_heads, 16, dim)
    pools = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(3)]
    rest = [(1e-5, qkv, bias, cos_sin, pool, slots, case.num_q_heads) for pool in pools]
    want = reference.norm_qkv(stream, gain, *rest[0])
    for q, pool in (
        (wide.norm_qkv(scaled, *rest[1], tile, pdl=pdl), pools[1]),
        (composed.norm_qkv(stream, gain, *rest[2], scaled), pools[2]),
    ):
        assert error(q, want) < bound
        # The last block is scratch.
        assert error(pool[:-1], pools[0][:-1]) < bound or rows == 1
