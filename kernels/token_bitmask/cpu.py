"""The same masking; NumPy unpacks bits eight at a time."""

import math

import numpy as np
import torch


def apply_token_bitmask(logits: torch.Tensor, bitmask: torch.Tensor) -> None:
    """See the public function."""
    clear_bytes = np.ascontiguousarray(~bitmask.numpy()).view(np.uint8)
    is_clear = np.unpackbits(clear_bytes, axis=-1, count=logits.shape[-1], bitorder="little")
    logits.masked_fill_(torch.from_numpy(is_clear.view(np.bool_)), -math.inf)
