"""One launch: the first program of a row makes its numbers, and each copies a piece of its block table."""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from pillion.kernels.paged_attention.triton_decode import has_pdl

# Columns of a block table that a program copies.
_COLUMNS = 1024


@triton.jit(do_not_specialize=["num_blocks"])
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
    advance_ptr,
    block_table_ptr,
    num_blocks,
    token_stride,
    table_stride,
    BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row)
    table_ptr = block_tables_ptr + slot * table_stride
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    # Nothing is stored before all of this is under way.
    blocks = tl.load(table_ptr + column, mask=column < num_blocks, other=0)
    computed = tl.load(num_computed_ptr + slot)
    known = tl.load(num_known_ptr + slot)
    capacity = tl.load(capacity_ptr + slot)
    finished = tl.load(finished_ptr + slot).to(tl.int32)
    tl.store(block_table_ptr + row * num_blocks + column, blocks, mask=column < num_blocks)
    if tl.program_id(1) > 0:
        return
    valid = (computed + 1 == known) & (computed < capacity) & (finished == 0)
    position = tl.where(valid, computed, 0)
    token = tl.load(token_table_ptr + slot * token_stride + position)
    block = tl.load(table_ptr + position // BLOCK_SIZE)
    mapped = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
    tl.store(input_ids_ptr + row, token.to(tl.int64))
    tl.store(positions_ptr + row, position)
    tl.store(slot_mapping_ptr + row, tl.where(valid, mapped, -1))
    tl.store(seq_lens_ptr + row, tl.where(valid, computed + 1, 0).to(tl.int32))
    tl.store(valid_ptr + row, valid.to(tl.int1))
    tl.store(advance_ptr + row, valid.to(tl.int64))


def prepare_decode(
    slots: torch.Tensor,
    token_table: torch.Tensor,
    num_computed: torch.Tensor,
    num_known: torch.Tensor,
    capacity: torch.Tensor,
    finished: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
    num_blocks: int,
) -> tuple[torch.Tensor, ...]:
    """See `pillion.kernels.prepare_decode.prepare_decode`."""
    num_rows = slots.shape[0]
    input_ids, positions, slot_mapping, advance = (torch.empty_like(slots) for _ in range(4))
    seq_lens = torch.empty(num_rows, dtype=torch.int32, device=slots.device)
    valid = torch.empty(num_rows, dtype=torch.bool, device=slots.device)
    block_table = torch.empty((num_rows, num_blocks), dtype=torch.int32, device=slots.device)
    if num_rows:
        _prepare_decode_kernel[(num_rows, max(1, triton.cdiv(num_blocks, _COLUMNS)))](
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
            advance,
            block_table,
            num_blocks,
            token_table.stride(0),
            block_tables.stride(0),
            BLOCK_SIZE=block_size,
            COLUMNS=_COLUMNS,
            PDL=has_pdl(slots.device),
        )
    return input_ids, positions, slot_mapping, seq_lens, valid, advance, block_table
