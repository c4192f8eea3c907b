"""One launch for all rows and ids; the noise itself is a function for kernels that need it where it is used."""

import torch
import triton
import triton.language as tl

from pillion.kernels.gumbel_noise import reference

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX64_A = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX64_B = tl.constexpr(0x94D049BB133111EB)
_MIX32_A = tl.constexpr(0x85EBCA6B)
_MIX32_B = tl.constexpr(0xC2B2AE35)
_ROUND_A = tl.constexpr(reference.ROUND_A)
_ROUND_B = tl.constexpr(reference.ROUND_B % 2**32)
_UNIT = tl.constexpr(2.0**-31 * (1.0 - 2.0**-24))
_HALF_UNIT = tl.constexpr(2.0**-32 * (1.0 - 2.0**-24))

_BLOCK = 1024


@triton.jit
def _mix64(x):
    x = (x ^ (x >> 30)) * _MIX64_A
    x = (x ^ (x >> 27)) * _MIX64_B
    return x ^ (x >> 31)


@triton.jit
def row_key(seed, position):
    """The 64 bits of a row, from two int64."""
    mixed = _mix64(seed.to(tl.uint64, bitcast=True))
    return _mix64(mixed + position.to(tl.uint64, bitcast=True) * _GOLDEN)


@triton.jit
def _uniform_bits(key, token_ids):
    x = token_ids.to(tl.uint32)
    x = (x ^ (x >> 16)) * _MIX32_A
    x = (x ^ (x >> 13)) * _MIX32_B
    x = x ^ (x >> 16)
    x = (x ^ key.to(tl.uint32)) * _ROUND_A
    x = (x ^ (x >> 15)) + (key >> 32).to(tl.uint32)
    x = x * _ROUND_B
    return (x ^ (x >> 16)) & 0x7FFFFFFF


@triton.jit
def _log1p(x):
    """log(1 + x) for x from -1 to 0; the quotient takes back what 1 + x has rounded (Kahan)."""
    y = 1.0 + x
    rounded = y - 1.0
    exact = rounded == 0.0
    return tl.where(exact, x, tl.log(y) * (x / tl.where(exact, 1.0, rounded)))


@triton.jit
def gumbel(key, token_ids):
    """Standard Gumbel noise for the key of `row_key` and these ids, float32.

    Only without fused multiply-add (`enable_fp_fusion=False`) the uniform numbers are those of the reference.
    """
    minus_u = _uniform_bits(key, token_ids).to(tl.int32).to(tl.float32) * -_UNIT - _HALF_UNIT
    return -tl.log(-_log1p(minus_u))


@triton.jit
def _noise_kernel(
    seeds_ptr, positions_ptr, ids_ptr, out_ptr, num_tokens, ids_stride, BITS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    key = row_key(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < num_tokens
    ids = tl.load(ids_ptr + row * ids_stride + token, mask=inside, other=0)
    if BITS:
        values = _uniform_bits(key, ids).to(tl.int32)
    else:
        values = gumbel(key, ids)
    tl.store(out_ptr + row * num_tokens + token, values, mask=inside)


def gumbel_noise(
    seeds: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """See `pillion.kernels.gumbel_noise.gumbel_noise`."""
    return _launch(seeds, positions, token_ids, torch.float32)


def uniform_bits(
    seeds: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """As `pillion.kernels.gumbel_noise.reference.uniform_bits`."""
    return _launch(seeds, positions, token_ids, torch.int32)


def _launch(
    seeds: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    num_rows, num_tokens = seeds.shape[0], token_ids.shape[-1]
    out = torch.empty((num_rows, num_tokens), dtype=dtype, device=seeds.device)
    if out.numel():
        token_ids = token_ids.contiguous()
        _noise_kernel[(num_rows, triton.cdiv(num_tokens, _BLOCK))](
            seeds.contiguous(),
            positions.contiguous(),
            token_ids,
            out,
            num_tokens,
            num_tokens if token_ids.dim() == 2 else 0,
            BITS=dtype == torch.int32,
            BLOCK=_BLOCK,
            enable_fp_fusion=False,
        )
    return out
