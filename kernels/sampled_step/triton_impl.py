"""One program per row."""

import torch
import triton
import triton.language as tl

from pillion.kernels.edit_logits import reference as edits_reference
from pillion.kernels.greedy_step.triton_impl import update_row
from pillion.kernels.sampled_step.reference import Edits, SlotTables
from pillion.kernels.sampling_threshold.triton_rows import is_finite, row_best

_PENALTIES = tl.constexpr(edits_reference.PENALTIES)
_BAD_WORDS = tl.constexpr(edits_reference.BAD_WORDS)
_BANS = tl.constexpr(edits_reference.MIN_TOKENS | edits_reference.BAD_WORDS)


@triton.jit
def _best_banned(banned_ptr, banned_ids_ptr, row, num_pieces, PIECES: tl.constexpr):
    """The best banned token of a row, and its logit."""
    piece = tl.arange(0, PIECES)
    at = row * num_pieces + piece
    banned = tl.load(banned_ptr + at, mask=piece < num_pieces, other=float("-inf"))
    ids = tl.load(banned_ids_ptr + at, mask=piece < num_pieces, other=2147483647)
    best = tl.max(banned, axis=0)
    return tl.min(tl.where(banned == best, ids, 2147483647), axis=0), best


@triton.jit(do_not_specialize=["num_rows"])
def _sampled_step_kernel(
    token_ids_ptr,
    best_ptr,
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
    features_ptr,
    best_before_ptr,
    banned_ptr,
    banned_ids_ptr,
    token_counts_ptr,
    recent_ptr,
    num_rows,
    token_stride,
    num_stops,
    num_pieces,
    vocab,
    num_recent,
    EDITS: tl.constexpr,
    PIECES: tl.constexpr,
    STOPS: tl.constexpr,
    RECENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(token_ids_ptr + row)
    best = tl.load(best_ptr + row)
    if EDITS:
        features = tl.load(features_ptr + row)
        if ((features & _BANS) != 0) & (best == float("-inf")):
            banned_id, banned = _best_banned(banned_ptr, banned_ids_ptr, row, num_pieces, PIECES)
            token = tl.where(banned > float("-inf"), banned_id, token)
            tl.store(token_ids_ptr + row, token)
        if features != 0:
            best = row_best(best_before_ptr, row, num_pieces, PIECES)
    failed = is_finite(best) == 0
    slot, appended = update_row(
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
    if EDITS:
        if appended & ((features & _PENALTIES) != 0):
            counted = tl.load(token_counts_ptr + slot * vocab + token).to(tl.int32)
            is_full = (counted & 0x7FFF) == 0x7FFF
            counted = tl.where(is_full, counted, counted + 1).to(tl.int16)
            tl.store(token_counts_ptr + slot * vocab + token, counted)
        if appended & ((features & _BAD_WORDS) != 0):
            nth = tl.arange(0, RECENT)
            recent_ptr += slot * num_recent
            newer = tl.load(recent_ptr + nth + 1, mask=nth + 1 < num_recent, other=0)
            newer = tl.where(nth + 1 < num_recent, newer, token)
            tl.debug_barrier()
            tl.store(recent_ptr + nth, newer, mask=nth < num_recent)


def sampled_step(
    token_ids: torch.Tensor,
    best: torch.Tensor,
    slots: torch.Tensor,
    valid: torch.Tensor,
    advance: torch.Tensor,
    tables: SlotTables,
    columns: torch.Tensor,
    edits: Edits | None,
) -> None:
    """See `pillion.kernels.sampled_step.sampled_step`."""
    num_rows, num_stops = len(slots), tables.stop_ids.shape[1]
    if num_rows == 0:
        return
    # Without edits nothing reads these.
    pieces = (token_ids,) * 6
    num_pieces, vocab, num_recent = 1, 1, 1
    if edits is not None:
        pieces = (edits.features, *edits.edited, edits.token_counts, edits.recent)
        num_pieces = edits.edited.banned.shape[1]
        vocab, num_recent = edits.token_counts.shape[1], edits.recent.shape[1]
    _sampled_step_kernel[(num_rows,)](
        token_ids,
        best,
        slots,
        valid,
        advance,
        *tables,
        columns,
        *pieces,
        num_rows,
        tables.token_table.stride(0),
        num_stops,
        num_pieces,
        vocab,
        num_recent,
        EDITS=edits is not None,
        PIECES=triton.next_power_of_2(num_pieces),
        STOPS=triton.next_power_of_2(num_stops),
        RECENT=triton.next_power_of_2(num_recent),
        num_warps=1,
    )
