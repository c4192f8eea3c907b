"""Specification of token bitmasks."""

import math

import torch


def apply_token_bitmask(
    logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor, mask_rows: torch.Tensor
) -> None:
    """See the public function."""
    bit = torch.arange(32, dtype=torch.int32, device=bitmask.device)
    is_clear = ((bitmask[mask_rows][:, :, None] >> bit) & 1) == 0
    is_clear = is_clear.flatten(1)[:, : logits.shape[-1]]
    logits[rows] = logits[rows].masked_fill(is_clear, -math.inf)
