"""Restricts rows to sets of tokens given as bits."""

import torch

from pillion.kernels.token_bitmask import cpu


def apply_token_bitmask(
    logits: torch.Tensor,
    bitmask: torch.Tensor,
    rows: torch.Tensor,
    mask_rows: torch.Tensor,
) -> None:
    """Sets the logits of tokens whose bit is 0 to -inf: logits[rows[i]] by bitmask[mask_rows[i]].

    Token id t is bit t % 32 of word t // 32.

    logits     [n, vocab] float32; the last dimension is dense
    bitmask    [m, ceil(vocab / 32)] int32, dense
    rows       [k] int64, different from each other
    mask_rows  [k] int64

    Writes: logits.
    """
    if logits.is_cuda:
        from pillion.kernels.token_bitmask import triton_impl

        triton_impl.apply_token_bitmask(logits, bitmask, rows, mask_rows)
    else:
        cpu.apply_token_bitmask(logits, bitmask, rows, mask_rows)
