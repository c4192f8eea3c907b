"""One program per row, so that a step's bookkeeping is one launch."""

import torch
import triton
import triton.language as tl


@triton.jit
def _update_rows_kernel(
    slots_ptr,
    token_ids_ptr,
    valid_ptr,
    failed_ptr,
    token_table_ptr,
    num_known_ptr,
    max_total_ptr,
    finished_ptr,
    stop_ids_ptr,
    positions_ptr,
    finish_ptr,
    token_stride,
    num_stops,
    STOPS: tl.constexpr,
):
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    token = tl.load(token_ids_ptr + row)
    valid = tl.load(valid_ptr + row).to(tl.int32) != 0
    failed = tl.load(failed_ptr + row).to(tl.int32) != 0
    known = tl.load(num_known_ptr + slot)
    appended = valid & (failed == 0)
    lane = tl.arange(0, STOPS)
    stops = tl.load(stop_ids_ptr + slot * num_stops + lane, mask=lane < num_stops, other=-1)
    stopped = tl.max((stops == token).to(tl.int32), axis=0) != 0
    full = known + 1 >= tl.load(max_total_ptr + slot)
    finish = tl.where(failed, 3, tl.where(stopped, 1, tl.where(full, 2, 0)))
    finish = tl.where(valid, finish, 0)
    tl.store(positions_ptr + row, tl.where(appended, known, 0))
    tl.store(finish_ptr + row, finish.to(tl.uint8))
    if appended:
        tl.store(token_table_ptr + slot * token_stride + known, token)
        tl.store(num_known_ptr + slot, known + 1)
    if finish > 0:
        tl.store(finished_ptr + slot, tl.full((), 1, tl.int1))


def update_rows(
    slots: torch.Tensor,
    token_ids: torch.Tensor,
    valid: torch.Tensor,
    failed: torch.Tensor,
    token_table: torch.Tensor,
    num_known: torch.Tensor,
    max_total: torch.Tensor,
    finished: torch.Tensor,
    stop_ids: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `pillion.kernels.update_rows.update_rows`."""
    num_rows = slots.shape[0]
    positions = torch.empty_like(slots)
    finish = torch.empty(num_rows, dtype=torch.uint8, device=slots.device)
    if num_rows:
        _update_rows_kernel[(num_rows,)](
            slots,
            token_ids,
            valid,
            failed,
            token_table,
            num_known,
            max_total,
            finished,
            stop_ids,
            positions,
            finish,
            token_table.stride(0),
            stop_ids.shape[1],
            STOPS=triton.next_power_of_2(stop_ids.shape[1]),
            num_warps=1,
        )
    return positions, finish
