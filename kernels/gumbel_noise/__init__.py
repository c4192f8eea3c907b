"""Gumbel noise as a pure function of (seed, position, token id)."""

import torch

from pillion.kernels.gumbel_noise import reference


def gumbel_noise(
    seeds: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """Standard Gumbel noise: argmax(logits + noise) is a draw from softmax(logits).

    Each value depends on its own seed, position and token id only, so a subset of the vocabulary, another
    batch, slot or order gets the same noise. The random bits are equal on every device; the two logarithms
    may differ in the last bit between devices. Values lie between -2.9 and 22.2.

    seeds and positions: [n] int64. token_ids: [m] (the same for all rows) or [n, m], any integer type,
    each below 2**31. Returns [n, m] float32.
    """
    if seeds.is_cuda:
        from pillion.kernels.gumbel_noise import triton_impl

        return triton_impl.gumbel_noise(seeds, positions, token_ids)
    return reference.gumbel_noise(seeds, positions, token_ids)
