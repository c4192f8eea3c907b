"""The grid that every implementation is tested on."""

from dataclasses import dataclass
from typing import Final

import torch

# Type and the absolute error that it allows where values are normal.
TOLERANCES: Final = {torch.float32: 1e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}


@dataclass(frozen=True, slots=True)
class Inputs:
    """A case's tensors, in the order of the kernel's arguments."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cos_sin: torch.Tensor
    layer_kv: torch.Tensor
    slot_mapping: torch.Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """`masked` are indices of tokens that are not stored."""

    num_tokens: int
    num_q_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    rotary_dim: int = 64
    block_size: int = 16
    masked: tuple[int, ...] = ()

    def inputs(self, device: torch.device, dtype: torch.dtype) -> Inputs:
        """q, k and v are views of one product, as in a model; the pool is a layer in the middle, full of NaN."""
        generator = torch.Generator().manual_seed(self.num_tokens)
        num_heads = self.num_q_heads + 2 * self.num_kv_heads
        qkv = torch.randn(self.num_tokens, num_heads, self.head_dim, generator=generator)
        split = [self.num_q_heads, self.num_kv_heads, self.num_kv_heads]
        q, k, v = qkv.to(device, dtype).split_with_sizes(split, dim=1)
        angles = torch.rand(self.num_tokens, self.rotary_dim // 2, generator=generator) * 100
        num_blocks = -(-self.num_tokens // self.block_size) + 2
        shape = (num_blocks, 3, 2, self.num_kv_heads, self.block_size, self.head_dim)
        pool = torch.full(shape, float("nan"), device=device, dtype=dtype)
        places = torch.randperm((num_blocks - 1) * self.block_size, generator=generator)
        slot_mapping = places[: self.num_tokens]
        slot_mapping[list(self.masked)] = -1
        return Inputs(
            q=q,
            k=k,
            v=v,
            cos_sin=torch.stack([angles.cos(), angles.sin()], dim=1).to(device),
            layer_kv=pool[:, 1],
            slot_mapping=slot_mapping.to(device),
        )


CASES: Final = (
    Case(0),
    Case(1),
    Case(1, masked=(0,)),
    Case(37),
    Case(37, masked=(0, 5, 36)),
    Case(5, num_q_heads=1, num_kv_heads=1, head_dim=6, rotary_dim=6, block_size=8),
    Case(20, head_dim=80, rotary_dim=32),
    Case(33, num_q_heads=8, num_kv_heads=8, head_dim=128, rotary_dim=128, block_size=128),
)
