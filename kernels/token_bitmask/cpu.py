"""The same masking; NumPy unpacks bits eight at a time."""

import math

import numpy as np
import torch


def apply_token_bitmask(
    logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor, mask_rows: torch.Tensor
) -> None:
    """See the public function."""
    clear_bytes = (~bitmask.numpy()[mask_rows.numpy()]).view(np.uint8)
    is_clear = np.unpackbits(clear_bytes, axis=-1, count=logits.shape[-1], bitorder="little")
    for row, clear in zip(rows.tolist(), torch.from_numpy(is_clear.view(np.bool_)), strict=True):
        logits[row].masked_fill_(clear, -math.inf)
