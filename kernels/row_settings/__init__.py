"""What a step's rows ask of the sampler, gathered from the tables of slots."""

import torch

from pillion.kernels.row_settings import reference
from pillion.kernels.row_settings.reference import RowSettings

__all__ = ["RowSettings", "row_settings"]


def row_settings(
    slots: torch.Tensor,
    valid: torch.Tensor,
    num_known: torch.Tensor,
    shape: torch.Tensor,
    integers: torch.Tensor,
    features: torch.Tensor,
) -> RowSettings:
    """One value per row for each setting; masked rows ask for nothing.

    slots      [n] int64
    valid      [n] bool
    num_known  [num_slots] int64; where a slot's next token goes
    shape      [num_slots, 3] float32: temperature, min-p, top-p
    integers   [num_slots, 2] int64: top-k, seed
    features   [num_slots, 2] int32: bits of `edit_logits`; best tokens to tell, -1 without log-probabilities
    """
    if slots.is_cuda:
        from pillion.kernels.row_settings import triton_impl

        return triton_impl.row_settings(slots, valid, num_known, shape, integers, features)
    return reference.row_settings(slots, valid, num_known, shape, integers, features)
