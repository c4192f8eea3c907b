"""Sampling in one or two readings of the logits.

Whoever has filters is sampled from the list of tokens that `sampling_threshold` leaves, without a second look at
the logits; whoever has none, or too many tokens for a list, takes noise for every token in a second launch over
all pieces of the row. Greedy rows are decided by the first.
"""

import torch
import triton
import triton.language as tl

from pillion.kernels.gumbel_noise.triton_impl import gumbel, row_key
from pillion.kernels.sample import reference
from pillion.kernels.sampling_threshold.triton_impl import CAPACITY, PIECE, select
from pillion.kernels.sampling_threshold.triton_rows import (
    is_finite,
    listed_keys,
    row_best,
    tempered,
    z_of,
)

_MIN_TEMPERATURE = tl.constexpr(reference.MIN_TEMPERATURE)
_NO_ID = tl.constexpr(2147483647)


@triton.jit(do_not_specialize=["temperature_ptr", "seeds_ptr", "positions_ptr"])
def _noise_kernel(
    logits_ptr,
    temperature_ptr,
    seeds_ptr,
    positions_ptr,
    piece_best_ptr,
    threshold_ptr,
    count_ptr,
    score_ptr,
    score_ids_ptr,
    vocab,
    stride,
    num_pieces,
    PIECES: tl.constexpr,
    PIECE: tl.constexpr,
):
    """The best score of each piece of the rows that are sampled without a list."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperature_ptr + row)
    best = row_best(piece_best_ptr, row, num_pieces, PIECES)
    is_sampled = (temperature >= _MIN_TEMPERATURE) & is_finite(best)
    if is_sampled & (tl.load(count_ptr + row) < 0):
        threshold = tl.load(threshold_ptr + row)
        at = row * num_pieces + piece
        score, score_id = float("-inf"), _NO_ID
        if tempered(tl.load(piece_best_ptr + at), best, temperature) >= threshold:
            key = row_key(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
            token = piece * PIECE + tl.arange(0, PIECE)
            inside = token < vocab
            x = tl.load(logits_ptr + row * stride + token, mask=inside, other=float("-inf"))
            z = tempered(x, best, temperature)
            scores = tl.where(inside & (z >= threshold), gumbel(key, token) + z, float("-inf"))
            score = tl.max(scores, axis=0)
            score_id = tl.min(tl.where(scores == score, token, _NO_ID), axis=0)
        tl.store(score_ptr + at, score)
        tl.store(score_ids_ptr + at, score_id)


@triton.jit
def _best_id(values, ids):
    """The lowest id among those of the largest value."""
    return tl.min(tl.where(values == tl.max(values, axis=0), ids, _NO_ID), axis=0)


@triton.jit(do_not_specialize=["temperature_ptr", "seeds_ptr", "positions_ptr"])
def _choose_kernel(
    temperature_ptr,
    seeds_ptr,
    positions_ptr,
    piece_best_ptr,
    piece_ids_ptr,
    threshold_ptr,
    count_ptr,
    ids_ptr,
    keys_ptr,
    score_ptr,
    score_ids_ptr,
    token_ids_ptr,
    best_ptr,
    num_pieces,
    PIECES: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """One program per row."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperature_ptr + row)
    best = float("-inf")
    token_id = 0
    if temperature >= 0.0:
        best = row_best(piece_best_ptr, row, num_pieces, PIECES)
        piece = tl.arange(0, PIECES)
        inside, at = piece < num_pieces, row * num_pieces + piece
        if (temperature >= _MIN_TEMPERATURE) & is_finite(best):
            count = tl.load(count_ptr + row)
            if count < 0:
                scores = tl.load(score_ptr + at, mask=inside, other=float("-inf"))
                ids = tl.load(score_ids_ptr + at, mask=inside, other=_NO_ID)
                token_id = _best_id(scores, ids)
            else:
                lane = tl.arange(0, CAPACITY)
                token = tl.load(ids_ptr + row * CAPACITY + lane, mask=lane < count, other=_NO_ID)
                z = z_of(listed_keys(keys_ptr + row * CAPACITY, count, CAPACITY))
                key = row_key(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
                is_kept = (lane < count) & (z >= tl.load(threshold_ptr + row))
                score = tl.where(is_kept, gumbel(key, token) + z, float("-inf"))
                token_id = _best_id(score, token)
        else:
            x = tl.load(piece_best_ptr + at, mask=inside, other=float("-inf"))
            ids = tl.load(piece_ids_ptr + at, mask=inside, other=_NO_ID)
            # With a NaN in it a row has no best id.
            token_id = tl.where(best != best, 0, _best_id(x, ids))
    tl.store(token_ids_ptr + row, token_id)
    tl.store(best_ptr + row, best)


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    min_p: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    *,
    any_filter: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `pillion.kernels.sample.sample`; rows with a temperature below 0 cost nothing and get token 0."""
    num_rows, vocab = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    best = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    if num_rows == 0:
        return token_ids, best
    temperature, seeds, positions = (
        column.contiguous() for column in (temperature, seeds, positions)
    )
    found = select(logits, temperature, min_p, top_k, top_p, any_filter=any_filter)
    num_pieces = triton.cdiv(vocab, PIECE)
    score = torch.empty_like(found.piece_best)
    score_ids = torch.empty_like(found.piece_ids)
    pieces = triton.next_power_of_2(num_pieces)
    _noise_kernel[(num_rows, num_pieces)](
        logits,
        temperature,
        seeds,
        positions,
        found.piece_best,
        found.threshold,
        found.num_listed,
        score,
        score_ids,
        vocab,
        logits.stride(0),
        num_pieces,
        PIECES=pieces,
        PIECE=PIECE,
        num_warps=8,
        enable_fp_fusion=False,
    )
    _choose_kernel[(num_rows,)](
        temperature,
        seeds,
        positions,
        found.piece_best,
        found.piece_ids,
        found.threshold,
        found.num_listed,
        found.ids,
        found.keys,
        score,
        score_ids,
        token_ids,
        best,
        num_pieces,
        PIECES=pieces,
        CAPACITY=CAPACITY,
        num_warps=8,
        enable_fp_fusion=False,
    )
    return token_ids, best
