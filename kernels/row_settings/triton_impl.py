"""One launch for all columns."""

import torch
import triton
import triton.language as tl

from pillion.kernels.row_settings.reference import RowSettings

_BLOCK = 128  # rows of a program


@triton.jit(do_not_specialize=["num_rows"])
def _row_settings_kernel(
    slots_ptr,
    valid_ptr,
    num_known_ptr,
    shape_ptr,
    integers_ptr,
    table_features_ptr,
    temperature_ptr,
    min_p_ptr,
    top_k_ptr,
    top_p_ptr,
    seeds_ptr,
    positions_ptr,
    features_ptr,
    wants_logprobs_ptr,
    num_top_ptr,
    num_rows,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rows
    slot = tl.load(slots_ptr + row, mask=inside, other=0)
    valid = tl.load(valid_ptr + row, mask=inside, other=0).to(tl.int32) != 0
    temperature = tl.load(shape_ptr + slot * 3, mask=inside, other=0.0)
    tl.store(temperature_ptr + row, tl.where(valid, temperature, -1.0), mask=inside)
    tl.store(min_p_ptr + row, tl.load(shape_ptr + slot * 3 + 1, mask=inside), mask=inside)
    tl.store(top_p_ptr + row, tl.load(shape_ptr + slot * 3 + 2, mask=inside), mask=inside)
    tl.store(top_k_ptr + row, tl.load(integers_ptr + slot * 2, mask=inside), mask=inside)
    tl.store(seeds_ptr + row, tl.load(integers_ptr + slot * 2 + 1, mask=inside), mask=inside)
    tl.store(positions_ptr + row, tl.load(num_known_ptr + slot, mask=inside), mask=inside)
    bits = tl.load(table_features_ptr + slot * 2, mask=inside, other=0)
    num_top = tl.load(table_features_ptr + slot * 2 + 1, mask=inside, other=-1)
    tl.store(features_ptr + row, tl.where(valid, bits, 0), mask=inside)
    wants = tl.where(valid & (num_top >= 0), 1.0, -1.0)
    tl.store(wants_logprobs_ptr + row, wants, mask=inside)
    tl.store(num_top_ptr + row, num_top, mask=inside)


def row_settings(
    slots: torch.Tensor,
    valid: torch.Tensor,
    num_known: torch.Tensor,
    shape: torch.Tensor,
    integers: torch.Tensor,
    features: torch.Tensor,
) -> RowSettings:
    """See `pillion.kernels.row_settings.row_settings`."""
    num_rows = len(slots)

    def empty(dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(num_rows, dtype=dtype, device=slots.device)

    found = RowSettings(
        temperature=empty(torch.float32),
        min_p=empty(torch.float32),
        top_k=empty(torch.int64),
        top_p=empty(torch.float32),
        seeds=empty(torch.int64),
        positions=empty(torch.int64),
        features=empty(torch.int32),
        wants_logprobs=empty(torch.float32),
        num_top=empty(torch.int32),
    )
    if num_rows:
        _row_settings_kernel[(triton.cdiv(num_rows, _BLOCK),)](
            slots, valid, num_known, shape, integers, features, *found, num_rows, BLOCK=_BLOCK
        )
    return found
