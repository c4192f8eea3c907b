"""What the products' tiles don't suit goes the library's way, whatever a table says of its size."""

import pytest
import torch

from pillion.kernels.fused_linear import Scaled, norm_qkv, reference
from pillion.kernels.fused_linear.tiles import Kind, WideTile, trying

HIDDEN, NUM_Q_HEADS, NUM_KV_HEADS = 64, 4, 1
NUM_ROWS = 5
BOUND = 8e-3
TILE = WideTile(64, 64, 4, 4, 1, 8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("head_dim", "rotary_dim"), [(96, 96), (80, 80), (64, 32)], ids=["96", "80", "half"]
)
def test_heads_that_a_tile_does_not_cut(head_dim: int, rotary_dim: int, dtype: torch.dtype) -> None:
    """Also where the stream came with its `Scaled`, whose products are beyond float16 before they are divided."""
    torch.manual_seed(head_dim)
    num_heads = NUM_Q_HEADS + 2 * NUM_KV_HEADS
    product: tuple[Kind, int, int] = ("qkv", num_heads * head_dim, HIDDEN)
    stream = (torch.randn(NUM_ROWS, HIDDEN) * 6000).to(dtype)
    gain = torch.full((HIDDEN,), 1.5).to(dtype)
    weight = torch.randn(num_heads * head_dim, HIDDEN).to(dtype)
    angles = torch.rand(NUM_ROWS, rotary_dim // 2)
    cos_sin = torch.stack([angles.cos(), angles.sin()], dim=1)
    slots = torch.tensor([3, -1, 0, 17, 9])
    scaled = Scaled(stream * gain, stream.float().square().sum(1)[None])
    pools = [torch.zeros(3, 2, NUM_KV_HEADS, 16, head_dim).to(dtype) for _ in range(2)]
    found = []
    for pool, given, choice in zip(pools, (scaled, None), (TILE, None), strict=True):
        rest = (1e-5, weight, None, cos_sin, pool, slots, NUM_Q_HEADS)
        with trying({product: {8: choice}}):
            found.append(norm_qkv(stream, gain, *rest, given))
    assert error(*found) < BOUND
    assert error(*(pool[:2] for pool in pools)) < BOUND
    if rotary_dim == head_dim:
        rest = (1e-5, weight, None, cos_sin, torch.zeros_like(pools[0]), slots, NUM_Q_HEADS)
        assert error(found[0], reference.norm_qkv(stream, gain, *rest)) < BOUND


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative error in the Euclidean norm."""
    return float((got.double() - want.double()).norm() / want.double().norm())
