"""The specification in torch."""

from typing import Final, NamedTuple

import torch

from pillion.kernels.edit_logits.reference import BAD_WORDS, MIN_TOKENS, PENALTIES, Edited
from pillion.kernels.penalties.reference import MAX_COUNT
from pillion.kernels.update_rows import reference as update_rows

_BANS: Final = MIN_TOKENS | BAD_WORDS


class SlotTables(NamedTuple):
    """Those of `update_rows`, and how far each slot is computed."""

    token_table: torch.Tensor
    # [num_slots] int64
    num_computed: torch.Tensor
    num_known: torch.Tensor
    max_total: torch.Tensor
    finished: torch.Tensor
    stop_ids: torch.Tensor


class Edits(NamedTuple):
    """What there is besides if logits were edited; see the public function."""

    features: torch.Tensor
    edited: Edited
    token_counts: torch.Tensor
    recent: torch.Tensor


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
    failed = ~best.isfinite()
    if edits is not None:
        _take_banned(token_ids, best, edits)
        before = edits.edited.best_before.amax(-1)
        failed = torch.where(edits.features != 0, ~before.isfinite(), failed)
    tables.num_computed.index_add_(0, slots, advance)
    positions, finish = update_rows.update_rows(
        slots,
        token_ids,
        valid,
        failed,
        tables.token_table,
        tables.num_known,
        tables.max_total,
        tables.finished,
        tables.stop_ids,
    )
    for column, values in zip(columns, (token_ids, positions, finish, valid), strict=True):
        column.copy_(values)
    if edits is not None:
        _remember(token_ids, slots, valid & ~failed, edits)


def _take_banned(token_ids: torch.Tensor, best: torch.Tensor, edits: Edits) -> None:
    """Writes: token_ids of rows whose bans have left nothing."""
    banned, piece = edits.edited.banned.max(-1)
    banned_ids = edits.edited.banned_ids.gather(-1, piece[:, None])[:, 0]
    nothing_left = ((edits.features & _BANS) != 0) & (best == -torch.inf) & (banned > -torch.inf)
    token_ids.copy_(torch.where(nothing_left, banned_ids, token_ids))


def _remember(
    token_ids: torch.Tensor, slots: torch.Tensor, appended: torch.Tensor, edits: Edits
) -> None:
    """Writes: token_counts, recent."""
    rows = torch.nonzero(appended & ((edits.features & PENALTIES) != 0))[:, 0]
    place = slots[rows], token_ids[rows].long()
    counted = edits.token_counts[place]
    is_full = (counted & MAX_COUNT) == MAX_COUNT
    edits.token_counts[place] = torch.where(is_full, counted, counted + 1)
    rows = torch.nonzero(appended & ((edits.features & BAD_WORDS) != 0))[:, 0]
    older = edits.recent[slots[rows], 1:]
    edits.recent[slots[rows]] = torch.cat([older, token_ids[rows, None]], dim=1)
