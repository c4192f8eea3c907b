"""Specification of the edits, in terms of the kernels of each."""

from typing import Final, NamedTuple

import torch

from pillion.kernels.ban_tokens.reference import ban_tokens
from pillion.kernels.penalties.reference import apply_penalties
from pillion.kernels.token_bitmask.reference import apply_token_bitmask

# Bits of a row's features.
TOKEN_MASK: Final = 1
ALLOWED_IDS: Final = 2
LOGIT_BIAS: Final = 4
PENALTIES: Final = 8
MIN_TOKENS: Final = 16
BAD_WORDS: Final = 32

# Entries of a bad word that match every token, and of a word that there isn't.
ANY_TOKEN: Final = -2
NO_WORD: Final = -3


class EditTables(NamedTuple):
    """Per slot what it wants changed; each tensor is dense and stays where it is."""

    # [num_slots, ceil(vocab / 32)] int32 both; token id t is bit t % 32 of word t // 32, 0: forbidden
    token_masks: torch.Tensor
    allowed_ids: torch.Tensor
    # [num_slots, b] int64 and float32; ids differ, but for those with bias 0
    bias_ids: torch.Tensor
    biases: torch.Tensor
    # [at least num_slots, vocab] int16; as kernels.penalties says
    token_counts: torch.Tensor
    # [num_slots, 3] float32; repetition, frequency, presence
    strengths: torch.Tensor
    # [num_slots, e] int64; -1 fills
    stop_ids: torch.Tensor
    # [num_slots] int64; position from which a stop id may be sampled
    first_end: torch.Tensor
    # [num_slots, w, t] int32; right-aligned, the last token may not follow the others
    bad_words: torch.Tensor
    # [at least num_slots, t - 1] int32; the last output tokens, the newest at the end
    recent: torch.Tensor


class Edited(NamedTuple):
    """Of the rows with features, piece by piece; p depends on the implementation. Other rows mean nothing."""

    # [n, p] float32; largest logit before the edits, NaN if there is one
    best_before: torch.Tensor
    # [n, p] float32 and int32; of rows with bans the best banned token, lowest id among equals, and its logit
    # before the ban, -inf if there is none
    banned: torch.Tensor
    banned_ids: torch.Tensor


def edit_logits(
    logits: torch.Tensor,
    raw: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    features: torch.Tensor,
    wants_logprobs: torch.Tensor,
    tables: EditTables,
) -> Edited:
    """See the public function."""
    keeps = wants_logprobs >= 0.0
    raw[keeps] = logits[keeps]
    best_before = logits.amax(-1, keepdim=True)

    def rows_with(bits: int) -> torch.Tensor:
        return torch.nonzero(features & bits)[:, 0]

    for bit, bitmask in (TOKEN_MASK, tables.token_masks), (ALLOWED_IDS, tables.allowed_ids):
        rows = rows_with(bit)
        apply_token_bitmask(logits, bitmask, rows, slots[rows])
    rows = rows_with(LOGIT_BIAS)
    biased = tables.bias_ids[slots[rows]], tables.biases[slots[rows]]
    logits[rows] = logits[rows].scatter_add(1, *biased)
    rows = rows_with(PENALTIES)
    penalized = logits[rows]
    strengths = tables.strengths[slots[rows]].unbind(-1)
    apply_penalties(penalized, tables.token_counts, slots[rows], *strengths)
    logits[rows] = penalized
    token_ids, is_banned = _bans(slots, positions, features, tables)
    banned_ids, banned = ban_tokens(logits, token_ids, is_banned)
    return Edited(best_before, banned[:, None], banned_ids[:, None].to(torch.int32))


def _bans(
    slots: torch.Tensor, positions: torch.Tensor, features: torch.Tensor, tables: EditTables
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [n, e + w] and which of them are banned."""
    stop_ids = tables.stop_ids[slots]
    may_not_end = ((features & MIN_TOKENS) != 0) & (positions < tables.first_end[slots])
    words = tables.bad_words[slots]
    beginnings, last = words[:, :, :-1], words[:, :, -1].to(torch.int64)
    recent = tables.recent[slots][:, None]
    matches = ((beginnings == recent) | (beginnings == ANY_TOKEN)).all(-1)
    matches &= ((features & BAD_WORDS) != 0)[:, None]
    token_ids = torch.cat([stop_ids, last], dim=1)
    is_banned = torch.cat([may_not_end[:, None].expand_as(stop_ids), matches], dim=1)
    return token_ids.clamp_min(0), is_banned & (token_ids >= 0)
