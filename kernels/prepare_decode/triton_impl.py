"""One program per block of rows: a handful of gathers, and nothing else to launch."""

import torch
import triton
import triton.language as tl

_BLOCK = 64


@triton.jit(do_not_specialize=["num_rows"])
def _prepare_decode_kernel(
    slots_ptr,
    token_table_ptr,
    num_computed_ptr,
    num_known_ptr,
    capacity_ptr,
    finished_ptr,
    block_tables_ptr,
    input_ids_ptr,
    positions_ptr,
    slot_mapping_ptr,
    seq_lens_ptr,
    valid_ptr,
    num_rows,
    token_stride,
    table_stride,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = row < num_rows
    slot = tl.load(slots_ptr + row, mask=mask, other=0)
    computed = tl.load(num_computed_ptr + slot, mask=mask, other=0)
    known = tl.load(num_known_ptr + slot, mask=mask, other=0)
    capacity = tl.load(capacity_ptr + slot, mask=mask, other=0)
    finished = tl.load(finished_ptr + slot, mask=mask, other=1).to(tl.int32)
    valid = (computed + 1 == known) & (computed < capacity) & (finished == 0)
    position = tl.where(valid, computed, 0)
    token = tl.load(token_table_ptr + slot * token_stride + position, mask=mask, other=0)
    block = tl.load(
        block_tables_ptr + slot * table_stride + position // BLOCK_SIZE, mask=mask, other=0
    )
    mapped = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
    tl.store(input_ids_ptr + row, token.to(tl.int64), mask=mask)
    tl.store(positions_ptr + row, position, mask=mask)
    tl.store(slot_mapping_ptr + row, tl.where(valid, mapped, -1), mask=mask)
    tl.store(seq_lens_ptr + row, tl.where(valid, computed + 1, 0).to(tl.int32), mask=mask)
    tl.store(valid_ptr + row, valid.to(tl.int1), mask=mask)


def prepare_decode(
    slots: torch.Tensor,
    token_table: torch.Tensor,
    num_computed: torch.Tensor,
    num_known: torch.Tensor,
    capacity: torch.Tensor,
    finished: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `pillion.kernels.prepare_decode.prepare_decode`."""
    num_rows = slots.shape[0]
    input_ids, positions, slot_mapping = (torch.empty_like(slots) for _ in range(3))
    seq_lens = torch.empty(num_rows, dtype=torch.int32, device=slots.device)
    valid = torch.empty(num_rows, dtype=torch.bool, device=slots.device)
    if num_rows:
        _prepare_decode_kernel[(triton.cdiv(num_rows, _BLOCK),)](
            slots,
            token_table,
            num_computed,
            num_known,
            capacity,
            finished,
            block_tables,
            input_ids,
            positions,
            slot_mapping,
            seq_lens,
            valid,
            num_rows,
            token_table.stride(0),
            block_tables.stride(0),
            BLOCK_SIZE=block_size,
            BLOCK=_BLOCK,
        )
    return input_ids, positions, slot_mapping, seq_lens, valid
