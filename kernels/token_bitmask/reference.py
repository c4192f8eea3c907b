"""Specification of token bitmasks."""

import math

import torch


def apply_token_bitmask(logits: torch.Tensor, bitmask: torch.Tensor) -> None:
    """See the public function."""
    bit = torch.arange(32, dtype=torch.int32, device=bitmask.device)
    is_clear = ((bitmask[:, :, None] >> bit) & 1) == 0
    logits.masked_fill_(is_clear.flatten(1)[:, : logits.shape[-1]], -math.inf)
