"""Two launches: the ids that are banned now, then every edit at once, a piece of a row's vocabulary per program.

A program reads its piece once. Edits of few tokens (bias, bans) go through memory: it picks those of the
list that lie in its piece. Rows without features cost the look at their bits.
"""

import torch
import triton
import triton.language as tl

from pillion.kernels.edit_logits import reference
from pillion.kernels.edit_logits.reference import Edited, EditTables

_PIECE = 4096
_TOKEN_MASK = tl.constexpr(reference.TOKEN_MASK)
_ALLOWED_IDS = tl.constexpr(reference.ALLOWED_IDS)
_LOGIT_BIAS = tl.constexpr(reference.LOGIT_BIAS)
_PENALTIES = tl.constexpr(reference.PENALTIES)
_MIN_TOKENS = tl.constexpr(reference.MIN_TOKENS)
_BAD_WORDS = tl.constexpr(reference.BAD_WORDS)
_BANS = tl.constexpr(reference.MIN_TOKENS | reference.BAD_WORDS)
_ANY_TOKEN = tl.constexpr(reference.ANY_TOKEN)
_NO_ID = tl.constexpr(2147483647)


@triton.jit
def _ban_list_kernel(
    slots_ptr,
    positions_ptr,
    features_ptr,
    stop_ids_ptr,
    first_end_ptr,
    bad_words_ptr,
    recent_ptr,
    bans_ptr,
    num_stops,
    num_words,
    num_tokens,
    num_bans,
    STOPS: tl.constexpr,
    WORDS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """One program per row. Writes: num_bans ids of the rows with bans, -1 for none."""
    row = tl.program_id(0).to(tl.int64)
    features = tl.load(features_ptr + row)
    if (features & _BANS) != 0:
        slot = tl.load(slots_ptr + row)
        stop = tl.arange(0, STOPS)
        inside = stop < num_stops
        ids = tl.load(stop_ids_ptr + slot * num_stops + stop, mask=inside, other=-1)
        too_early = tl.load(positions_ptr + row) < tl.load(first_end_ptr + slot)
        is_banned = ((features & _MIN_TOKENS) != 0) & too_early
        tl.store(
            bans_ptr + row * num_bans + stop, tl.where(is_banned, ids, -1).to(tl.int32), mask=inside
        )
        word = tl.arange(0, WORDS)
        last = tl.full((WORDS,), -1, tl.int32)
        if (features & _BAD_WORDS) != 0:
            nth = tl.arange(0, TOKENS)[None, :]
            at = (slot * num_words + word[:, None]) * num_tokens + nth
            is_there = (word[:, None] < num_words) & (nth < num_tokens)
            tokens = tl.load(bad_words_ptr + at, mask=is_there, other=-1)
            is_last = nth == num_tokens - 1
            recent = tl.load(
                recent_ptr + slot * (num_tokens - 1) + nth, mask=nth < num_tokens - 1, other=0
            )
            agrees = (tokens == recent) | (tokens == _ANY_TOKEN) | (nth >= num_tokens - 1)
            matches = tl.min(agrees.to(tl.int32), axis=1) != 0
            last = tl.sum(tl.where(is_last, tokens, 0), axis=1)
            last = tl.where(matches & (last >= 0), last, -1)
        tl.store(bans_ptr + row * num_bans + num_stops + word, last, mask=word < num_words)


@triton.jit
def _penalized(x, packed, strengths_ptr):
    """The formulas of kernels.penalties; without fused multiply-add they round as torch does."""
    count = (packed & 0x7FFF).to(tl.float32)
    repetition = tl.where(packed != 0, tl.load(strengths_ptr), 1.0)
    x = tl.where(x > 0.0, tl.div_rn(x, repetition), x * repetition)
    x = x - tl.load(strengths_ptr + 1) * count
    return x - tl.load(strengths_ptr + 2) * tl.where(count > 0.0, 1.0, 0.0)


@triton.jit
def _edit_kernel(
    logits_ptr,
    raw_ptr,
    slots_ptr,
    features_ptr,
    wants_logprobs_ptr,
    token_masks_ptr,
    allowed_ids_ptr,
    bias_ids_ptr,
    biases_ptr,
    token_counts_ptr,
    strengths_ptr,
    bans_ptr,
    best_before_ptr,
    banned_ptr,
    banned_ids_ptr,
    vocab,
    logits_stride,
    raw_stride,
    num_mask_words,
    num_biases,
    num_bans,
    num_pieces,
    BIASES: tl.constexpr,
    BANS: tl.constexpr,
    PIECE: tl.constexpr,
):
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    features = tl.load(features_ptr + row)
    wants_logprobs = tl.load(wants_logprobs_ptr + row) >= 0.0
    if (features != 0) | wants_logprobs:
        token = piece * PIECE + tl.arange(0, PIECE)
        inside = token < vocab
        logits_ptr += row * logits_stride
        x = tl.load(logits_ptr + token, mask=inside, other=float("-inf"))
        if wants_logprobs:
            tl.store(raw_ptr + row * raw_stride + token, x, mask=inside)
        if features != 0:
            slot = tl.load(slots_ptr + row)
            broken = tl.max((x != x).to(tl.int32), axis=0) != 0
            best = tl.where(broken, float("nan"), tl.max(x, axis=0))
            tl.store(best_before_ptr + row * num_pieces + piece, best)
            if (features & _TOKEN_MASK) != 0:
                at = slot * num_mask_words + token // 32
                words = tl.load(token_masks_ptr + at, mask=inside, other=0)
                x = tl.where(((words >> (token % 32)) & 1) != 0, x, float("-inf"))
            if (features & _ALLOWED_IDS) != 0:
                at = slot * num_mask_words + token // 32
                words = tl.load(allowed_ids_ptr + at, mask=inside, other=0)
                x = tl.where(((words >> (token % 32)) & 1) != 0, x, float("-inf"))
            if (features & _LOGIT_BIAS) != 0:
                tl.store(logits_ptr + token, x, mask=inside)
                nth = tl.arange(0, BIASES)
                at = slot * num_biases + nth
                ids = tl.load(bias_ids_ptr + at, mask=nth < num_biases, other=-1)
                bias = tl.load(biases_ptr + at, mask=nth < num_biases, other=0.0)
                mine = (ids // PIECE == piece) & (bias != 0.0)
                tl.debug_barrier()
                biased = tl.load(logits_ptr + ids, mask=mine, other=0.0) + bias
                tl.store(logits_ptr + ids, biased, mask=mine)
                tl.debug_barrier()
                x = tl.load(logits_ptr + token, mask=inside, other=float("-inf"))
            if (features & _PENALTIES) != 0:
                packed = tl.load(token_counts_ptr + slot * vocab + token, mask=inside, other=0)
                x = _penalized(x, packed.to(tl.int32), strengths_ptr + slot * 3)
            tl.store(logits_ptr + token, x, mask=inside)
            if (features & _BANS) != 0:
                nth = tl.arange(0, BANS)
                bans = tl.load(bans_ptr + row * num_bans + nth, mask=nth < num_bans, other=-1)
                is_mine = (bans >= 0) & (bans // PIECE == piece)
                tl.debug_barrier()
                values = tl.load(logits_ptr + bans, mask=is_mine, other=float("-inf"))
                banned = tl.max(values, axis=0)
                best_id = tl.min(tl.where(is_mine & (values == banned), bans, _NO_ID), axis=0)
                tl.store(banned_ptr + row * num_pieces + piece, banned)
                tl.store(banned_ids_ptr + row * num_pieces + piece, best_id)
                tl.debug_barrier()
                tl.store(logits_ptr + bans, float("-inf"), mask=is_mine)


def _banned_now(
    slots: torch.Tensor, positions: torch.Tensor, features: torch.Tensor, tables: EditTables
) -> torch.Tensor:
    """The ids that are banned at these positions, [num_rows, stops and words] int32; -1 for none."""
    num_rows, num_stops = len(slots), tables.stop_ids.shape[1]
    _, num_words, num_tokens = tables.bad_words.shape
    num_bans = num_stops + num_words
    bans = torch.empty((num_rows, num_bans), dtype=torch.int32, device=slots.device)
    _ban_list_kernel[(num_rows,)](
        slots,
        positions,
        features,
        tables.stop_ids,
        tables.first_end,
        tables.bad_words,
        tables.recent,
        bans,
        num_stops,
        num_words,
        num_tokens,
        num_bans,
        STOPS=triton.next_power_of_2(num_stops),
        WORDS=triton.next_power_of_2(num_words),
        TOKENS=triton.next_power_of_2(num_tokens),
        num_warps=8,
    )
    return bans


def edit_logits(
    logits: torch.Tensor,
    raw: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    features: torch.Tensor,
    wants_logprobs: torch.Tensor,
    tables: EditTables,
) -> Edited:
    """See `pillion.kernels.edit_logits.edit_logits`."""
    num_rows, vocab = logits.shape
    if logits.stride(-1) != 1 or raw.stride(-1) != 1:
        raise ValueError("the rows of logits and raw must be dense")
    num_pieces = triton.cdiv(vocab, _PIECE)

    def empty(width: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty((num_rows, width), dtype=dtype, device=logits.device)

    best_before, banned = (empty(num_pieces, torch.float32) for _ in range(2))
    banned_ids = empty(num_pieces, torch.int32)
    if num_rows == 0:
        return Edited(best_before, banned, banned_ids)
    bans = _banned_now(slots, positions, features, tables)
    num_bans, num_biases = bans.shape[1], tables.bias_ids.shape[1]
    _edit_kernel[(num_rows, num_pieces)](
        logits,
        raw,
        slots,
        features,
        wants_logprobs,
        tables.token_masks,
        tables.allowed_ids,
        tables.bias_ids,
        tables.biases,
        tables.token_counts,
        tables.strengths,
        bans,
        best_before,
        banned,
        banned_ids,
        vocab,
        logits.stride(0),
        raw.stride(0),
        tables.token_masks.shape[1],
        num_biases,
        num_bans,
        num_pieces,
        BIASES=triton.next_power_of_2(num_biases),
        BANS=triton.next_power_of_2(num_bans),
        PIECE=_PIECE,
        num_warps=8,
        enable_fp_fusion=False,
    )
    return Edited(best_before, banned, banned_ids)
