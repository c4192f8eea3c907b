"""First the best of each piece of a row, then per row the best of these and the slot's update."""

import torch
import triton
import triton.language as tl

_PIECE = 4096


@triton.jit
def _best_of_pieces_kernel(
    logits_ptr, best_ptr, best_id_ptr, vocab, stride, num_pieces, PIECE: tl.constexpr
):
    row, piece = tl.program_id(0), tl.program_id(1)
    at = piece * PIECE + tl.arange(0, PIECE)
    x = tl.load(logits_ptr + row.to(tl.int64) * stride + at, mask=at < vocab, other=float("-inf"))
    # A NaN anywhere makes the piece NaN: maxima alone might pass it over.
    broken = tl.max((x != x).to(tl.int32), axis=0) != 0
    best, best_id = tl.max(x, axis=0, return_indices=True, return_indices_tie_break_left=True)
    best = tl.where(broken, float("nan"), best)
    tl.store(best_ptr + row * num_pieces + piece, best)
    tl.store(best_id_ptr + row * num_pieces + piece, piece * PIECE + best_id)


@triton.jit
def update_row(
    row,
    token,
    failed,
    slots_ptr,
    valid_ptr,
    advance_ptr,
    token_table_ptr,
    num_computed_ptr,
    num_known_ptr,
    max_total_ptr,
    finished_ptr,
    stop_ids_ptr,
    columns_ptr,
    num_rows,
    token_stride,
    num_stops,
    STOPS: tl.constexpr,
):
    """What follows from a row's token. Returns its slot and whether the token was appended.

    Writes: the row's columns and its slot in the tables.
    """
    slot = tl.load(slots_ptr + row)
    valid = tl.load(valid_ptr + row).to(tl.int32) != 0
    known = tl.load(num_known_ptr + slot)
    appended = valid & (failed == 0)
    stop_lane = tl.arange(0, STOPS)
    stops = tl.load(
        stop_ids_ptr + slot * num_stops + stop_lane, mask=stop_lane < num_stops, other=-1
    )
    stopped = tl.max((stops == token).to(tl.int32), axis=0) != 0
    full = known + 1 >= tl.load(max_total_ptr + slot)
    finish = tl.where(failed, 3, tl.where(stopped, 1, tl.where(full, 2, 0)))
    finish = tl.where(valid, finish, 0)
    tl.store(columns_ptr + row, token)
    tl.store(columns_ptr + num_rows + row, tl.where(appended, known, 0).to(tl.int32))
    tl.store(columns_ptr + 2 * num_rows + row, finish)
    tl.store(columns_ptr + 3 * num_rows + row, valid.to(tl.int32))
    advance = tl.load(advance_ptr + row)
    if advance > 0:
        tl.store(num_computed_ptr + slot, tl.load(num_computed_ptr + slot) + advance)
    if appended:
        tl.store(token_table_ptr + slot * token_stride + known, token)
        tl.store(num_known_ptr + slot, known + 1)
    if finish > 0:
        tl.store(finished_ptr + slot, tl.full((), 1, tl.int1))
    return slot, appended


@triton.jit(do_not_specialize=["num_rows"])
def _update_kernel(
    best_ptr,
    best_id_ptr,
    slots_ptr,
    valid_ptr,
    advance_ptr,
    token_table_ptr,
    num_computed_ptr,
    num_known_ptr,
    max_total_ptr,
    finished_ptr,
    stop_ids_ptr,
    columns_ptr,
    num_pieces,
    num_rows,
    token_stride,
    num_stops,
    PIECES: tl.constexpr,
    STOPS: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, PIECES)
    x = tl.load(best_ptr + row * num_pieces + lane, mask=lane < num_pieces, other=float("-inf"))
    ids = tl.load(best_id_ptr + row * num_pieces + lane, mask=lane < num_pieces, other=0)
    broken = tl.max((x != x).to(tl.int32), axis=0) != 0
    best = tl.max(x, axis=0)
    token = tl.min(tl.where(x == best, ids, 2147483647), axis=0)
    failed = broken | (best == float("inf")) | (best == float("-inf"))
    token = tl.where(failed, 0, token)
    update_row(
        row,
        token,
        failed,
        slots_ptr,
        valid_ptr,
        advance_ptr,
        token_table_ptr,
        num_computed_ptr,
        num_known_ptr,
        max_total_ptr,
        finished_ptr,
        stop_ids_ptr,
        columns_ptr,
        num_rows,
        token_stride,
        num_stops,
        STOPS,
    )


def greedy_step(
    logits: torch.Tensor,
    slots: torch.Tensor,
    valid: torch.Tensor,
    advance: torch.Tensor,
    token_table: torch.Tensor,
    num_computed: torch.Tensor,
    num_known: torch.Tensor,
    max_total: torch.Tensor,
    finished: torch.Tensor,
    stop_ids: torch.Tensor,
    columns: torch.Tensor,
) -> None:
    """See `pillion.kernels.greedy_step.greedy_step`."""
    num_rows, vocab = logits.shape
    if num_rows == 0:
        return
    num_pieces = triton.cdiv(vocab, _PIECE)
    best = torch.empty((num_rows, num_pieces), dtype=torch.float32, device=logits.device)
    best_id = torch.empty((num_rows, num_pieces), dtype=torch.int32, device=logits.device)
    _best_of_pieces_kernel[(num_rows, num_pieces)](
        logits, best, best_id, vocab, logits.stride(0), num_pieces, PIECE=_PIECE
    )
    _update_kernel[(num_rows,)](
        best,
        best_id,
        slots,
        valid,
        advance,
        token_table,
        num_computed,
        num_known,
        max_total,
        finished,
        stop_ids,
        columns,
        num_pieces,
        num_rows,
        token_table.stride(0),
        stop_ids.shape[1],
        PIECES=triton.next_power_of_2(num_pieces),
        STOPS=triton.next_power_of_2(stop_ids.shape[1]),
        num_warps=1,
    )
