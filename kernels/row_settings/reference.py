"""The specification in torch."""

from typing import NamedTuple

import torch


class RowSettings(NamedTuple):
    """Of n rows; each tensor is dense."""

    # [n] float32; -1: masked
    temperature: torch.Tensor
    # [n] float32
    min_p: torch.Tensor
    # [n] int64
    top_k: torch.Tensor
    # [n] float32
    top_p: torch.Tensor
    # [n] int64
    seeds: torch.Tensor
    # [n] int64; where the sampled token goes
    positions: torch.Tensor
    # [n] int32; 0 for masked rows
    features: torch.Tensor
    # [n] float32; 1: log-probabilities are wanted, -1: not, or the row is masked
    wants_logprobs: torch.Tensor
    # [n] int32; means nothing where none are wanted
    num_top: torch.Tensor


def row_settings(
    slots: torch.Tensor,
    valid: torch.Tensor,
    num_known: torch.Tensor,
    shape: torch.Tensor,
    integers: torch.Tensor,
    features: torch.Tensor,
) -> RowSettings:
    """See `pillion.kernels.row_settings.row_settings`."""
    temperature, min_p, top_p = shape[slots].unbind(-1)
    top_k, seeds = integers[slots].unbind(-1)
    bits, num_top = features[slots].unbind(-1)
    wants_logprobs = torch.where(valid & (num_top >= 0), 1.0, -1.0)
    return RowSettings(
        torch.where(valid, temperature, -1.0),
        min_p.contiguous(),
        top_k.contiguous(),
        top_p.contiguous(),
        seeds.contiguous(),
        num_known[slots],
        torch.where(valid, bits, 0),
        wants_logprobs,
        num_top.contiguous(),
    )
