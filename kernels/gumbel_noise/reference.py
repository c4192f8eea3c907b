"""Specification and CPU path of the noise.

    key  = mix64(mix64(seed) + position * GOLDEN)                   64 bits per row
    x    = mix32(token_id) xor low32(key)                           32 bits per row and token
    x    = (x * A);  x ^= x >>> 15;  x += high32(key)
    x    = (x * B);  x ^= x >>> 16;  m = low 31 bits of x
    u    = (m + 1/2) / 2**31                                        uniform, never 0 or 1
    g    = -log(-log(1 - u))

All integer arithmetic wraps. Small u give large g, and floats are dense near 0: so rare tokens, which
win only with a very large g, get their full share (31 bits rather than the 24 of a float near 1).
"""

from typing import Final

import torch

_GOLDEN: Final = 0x9E3779B97F4A7C15 - 2**64
_MIX64_A: Final = 0xBF58476D1CE4E5B9 - 2**64
_MIX64_B: Final = 0x94D049BB133111EB - 2**64
_MIX32_A: Final = 0x85EBCA6B - 2**32
_MIX32_B: Final = 0xC2B2AE35 - 2**32
ROUND_A: Final = 0x7FEB352D
ROUND_B: Final = 0x846CA68B - 2**32
# A shade below 2**-31, so that the largest u is the largest float below 1 and its logarithm is finite.
_UNIT: Final = 2.0**-31 * (1.0 - 2.0**-24)


def gumbel_noise(
    seeds: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """See the public function."""
    return -torch.log_(neg_log_survival(seeds, positions, token_ids))


def uniform_bits(
    seeds: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """The integers m of the specification, [n, m] int32 from 0 to 2**31 - 1."""
    low, high = row_keys(seeds, positions)
    bits = mix32(token_ids) ^ low
    scratch = torch.empty_like(bits)
    bits.mul_(ROUND_A)
    _xor_shift(bits, 15, scratch)
    bits.add_(high).mul_(ROUND_B)
    _xor_shift(bits, 16, scratch)
    return bits.bitwise_and_(0x7FFFFFFF)


def row_keys(seeds: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Lower and upper half of each row's key, [n, 1] int32 both."""
    keys = _mix64(_mix64(seeds.to(torch.int64)) + positions.to(torch.int64) * _GOLDEN)
    return keys.to(torch.int32)[:, None], (keys >> 32).to(torch.int32)[:, None]


def mix32(token_ids: torch.Tensor) -> torch.Tensor:
    """A bijection of int32 in which every input bit moves every output bit."""
    mixed = token_ids.to(torch.int32, copy=True)
    scratch = torch.empty_like(mixed)
    _xor_shift(mixed, 16, scratch)
    mixed.mul_(_MIX32_A)
    _xor_shift(mixed, 13, scratch)
    mixed.mul_(_MIX32_B)
    _xor_shift(mixed, 16, scratch)
    return mixed


def neg_log_survival(
    seeds: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """-log(1 - u): exponential noise, [n, m] float32, positive and finite."""
    minus_u = uniform_bits(seeds, positions, token_ids).to(torch.float32)
    minus_u.mul_(-_UNIT).sub_(_UNIT / 2)
    return torch.log1p_(minus_u).neg_()


def _xor_shift(bits: torch.Tensor, shift: int, scratch: torch.Tensor) -> None:
    """bits ^= bits >>> shift, in place; the mask makes the arithmetic shift a logical one."""
    torch.bitwise_right_shift(bits, shift, out=scratch)
    bits.bitwise_xor_(scratch.bitwise_and_((1 << (32 - shift)) - 1))


def _mix64(values: torch.Tensor) -> torch.Tensor:
    """A bijection of int64 in which every input bit moves every output bit."""
    values = (values ^ ((values >> 30) & ((1 << 34) - 1))) * _MIX64_A
    values = (values ^ ((values >> 27) & ((1 << 37) - 1))) * _MIX64_B
    return values ^ ((values >> 31) & ((1 << 33) - 1))
