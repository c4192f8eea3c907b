"""One launch: programs of the first kind gather tokens, one program per block of rows says what becomes of them."""

import torch
import triton
import triton.language as tl

_BLOCK = 128


@triton.jit
def _row_state(
    rows_ptr, row, mask, num_rows, num_computed_ptr, num_known_ptr, capacity_ptr, finished_ptr
):
    """(slot, first position, tokens, decodes, prefills, known) of rows."""
    slot = tl.load(rows_ptr + row, mask=mask, other=0).to(tl.int64)
    start = tl.load(rows_ptr + num_rows + row, mask=mask, other=0).to(tl.int64)
    num_tokens = tl.load(rows_ptr + 2 * num_rows + row, mask=mask, other=0).to(tl.int64)
    computed = tl.load(num_computed_ptr + slot, mask=mask, other=0)
    known = tl.load(num_known_ptr + slot, mask=mask, other=0)
    room = tl.load(capacity_ptr + slot, mask=mask, other=0)
    finished = tl.load(finished_ptr + slot, mask=mask, other=1).to(tl.int32)
    runs = (num_tokens > 0) & (finished == 0)
    decodes = runs & (start < 0) & (computed + 1 == known) & (computed < room)
    prefills = runs & (start >= 0) & (start + num_tokens <= room)
    return slot, tl.where(start < 0, computed, start), num_tokens, decodes, prefills, known


@triton.jit(do_not_specialize=["num_rows", "num_tokens"])
def _prepare_mixed_kernel(
    rows_ptr,
    query_start_ptr,
    token_rows_ptr,
    token_table_ptr,
    num_computed_ptr,
    num_known_ptr,
    capacity_ptr,
    finished_ptr,
    block_tables_ptr,
    input_ids_ptr,
    positions_ptr,
    slot_mapping_ptr,
    slots_ptr,
    decode_lens_ptr,
    prefill_lens_ptr,
    valid_ptr,
    advance_ptr,
    last_tokens_ptr,
    num_rows,
    num_tokens,
    token_stride,
    table_stride,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    num_token_programs = tl.cdiv(num_tokens, BLOCK)
    pid = tl.program_id(0)
    if pid < num_token_programs:
        token = pid * BLOCK + tl.arange(0, BLOCK)
        mask = token < num_tokens
        row = tl.load(token_rows_ptr + token, mask=mask, other=-1)
        owned = row >= 0
        slot, first, _, decodes, prefills, _ = _row_state(
            rows_ptr, row, owned, num_rows,
            num_computed_ptr, num_known_ptr, capacity_ptr, finished_ptr,
        )  # fmt: skip
        stored = owned & (decodes | prefills)
        offset = token - tl.load(query_start_ptr + row, mask=owned, other=0)
        position = tl.where(stored, first + offset, 0)
        tokens = tl.load(token_table_ptr + slot * token_stride + position, mask=mask, other=0)
        block = tl.load(
            block_tables_ptr + slot * table_stride + position // BLOCK_SIZE, mask=mask, other=0
        )
        mapped = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
        tl.store(input_ids_ptr + token, tokens.to(tl.int64), mask=mask)
        tl.store(positions_ptr + token, position, mask=mask)
        tl.store(slot_mapping_ptr + token, tl.where(stored, mapped, -1), mask=mask)
    else:
        row = (pid - num_token_programs) * BLOCK + tl.arange(0, BLOCK)
        mask = row < num_rows
        slot, first, count, decodes, prefills, known = _row_state(
            rows_ptr, row, mask, num_rows,
            num_computed_ptr, num_known_ptr, capacity_ptr, finished_ptr,
        )  # fmt: skip
        live = decodes | prefills
        end = first + count
        last = tl.load(query_start_ptr + row + 1, mask=mask, other=1).to(tl.int64) - 1
        tl.store(slots_ptr + row, slot, mask=mask)
        tl.store(decode_lens_ptr + row, tl.where(decodes, end, 0).to(tl.int32), mask=mask)
        tl.store(prefill_lens_ptr + row, tl.where(prefills, end, 0).to(tl.int32), mask=mask)
        tl.store(valid_ptr + row, (live & (end == known)).to(tl.int1), mask=mask)
        tl.store(advance_ptr + row, tl.where(live, count, 0), mask=mask)
        tl.store(last_tokens_ptr + row, tl.maximum(last, 0), mask=mask)


def prepare_mixed(
    rows: torch.Tensor,
    query_start_loc: torch.Tensor,
    token_rows: torch.Tensor,
    token_table: torch.Tensor,
    num_computed: torch.Tensor,
    num_known: torch.Tensor,
    capacity: torch.Tensor,
    finished: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
) -> tuple[torch.Tensor, ...]:
    """See `pillion.kernels.prepare_mixed.prepare_mixed`."""
    num_rows, num_tokens = rows.shape[1], token_rows.shape[0]

    def new(size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=rows.device)

    outputs = (
        new(num_tokens),
        new(num_tokens),
        new(num_tokens),
        new(num_rows),
        new(num_rows, torch.int32),
        new(num_rows, torch.int32),
        new(num_rows, torch.bool),
        new(num_rows),
        new(num_rows),
    )
    grid = (triton.cdiv(num_tokens, _BLOCK) + triton.cdiv(num_rows, _BLOCK),)
    _prepare_mixed_kernel[grid](
        rows,
        query_start_loc,
        token_rows,
        token_table,
        num_computed,
        num_known,
        capacity,
        finished,
        block_tables,
        *outputs,
        num_rows,
        num_tokens,
        token_table.stride(0),
        block_tables.stride(0),
        BLOCK_SIZE=block_size,
        BLOCK=_BLOCK,
    )
    return outputs
