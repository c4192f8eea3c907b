"""The rounds of the hash for whole vocabularies on the CPU.

NumPy has logical shifts of unsigned integers, where torch needs a mask after each, and vector
instructions for all of them.
"""

import numpy as np
import torch

from pillion.kernels.gumbel_noise import reference

_ROUND_A = np.uint32(reference.ROUND_A % 2**32)
_ROUND_B = np.uint32(reference.ROUND_B % 2**32)


def hash_tokens(
    mixed_ids: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    bits: torch.Tensor,
    scratch: torch.Tensor,
) -> None:
    """The integers m of the specification for the keys of `row_keys` and the ids of `mix32`.

    mixed_ids: [m] int32. low, high: [n, 1] int32. Writes: bits and scratch, both [n, m] int32.
    """
    x, shifted = bits.numpy().view(np.uint32), scratch.numpy().view(np.uint32)
    np.bitwise_xor(mixed_ids.numpy().view(np.uint32), low.numpy().view(np.uint32), out=x)
    np.multiply(x, _ROUND_A, out=x)
    np.bitwise_xor(x, np.right_shift(x, 15, out=shifted), out=x)
    np.add(x, high.numpy().view(np.uint32), out=x)
    np.multiply(x, _ROUND_B, out=x)
    np.bitwise_xor(x, np.right_shift(x, 16, out=shifted), out=x)
    np.bitwise_and(x, 0x7FFFFFFF, out=x)
