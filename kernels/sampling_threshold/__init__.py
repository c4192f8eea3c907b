"""The logit below which min-p, top-k and top-p drop tokens."""

import torch

from pillion.kernels.sampling_threshold import cpu


def sampling_threshold(
    scaled: torch.Tensor, min_p: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """The threshold t of each row: exactly the tokens with scaled logit >= t may be sampled.

    min-p, then top-k, then top-p, each on what the one before left, as one number per row; see
    `reference` for the formulas. Tokens of equal logit are kept or dropped together, so the kept set
    depends on no order: top-k keeps more than k tokens when several tie for the k-th place.

    scaled: [n, vocab] float32, z = (logits - row's max) / temperature, so each row's max is 0.
    min_p: [n] float32, 0 is off. top_k: [n] int64 from 1, vocab or more is off. top_p: [n] float32 above 0,
    1 is off. Returns [n] float32, at most 0; -inf where nothing is dropped.
    """
    if scaled.is_cuda:
        from pillion.kernels.sampling_threshold import triton_impl

        return triton_impl.sampling_threshold(scaled, min_p, top_k, top_p)
    return cpu.sampling_threshold(scaled, min_p, top_k, top_p)
