"""Log-probabilities with two readings of the logits and no sort.

The first reading gives the sum of exp and the best logit of each group of tokens, from which the best tokens are
listed as in `sampling_threshold`; the second counts what is greater than the given token.
"""

import torch
import triton
import triton.language as tl

from pillion.kernels.sampling_threshold.triton_impl import CAPACITY, PIECE, list_best, row_mass
from pillion.kernels.sampling_threshold.triton_rows import (
    NO_KEY,
    is_finite,
    listed_keys,
    row_best,
    z_of,
)
from pillion.kernels.token_logprobs import reference

_MIN_LOGPROB = tl.constexpr(reference.MIN_LOGPROB)
_NO_ID = tl.constexpr(2147483647)
_COLUMNS = 128  # that are emptied at once


@triton.jit(do_not_specialize=["token_ids_ptr", "wanted_ptr"])
def _rank_kernel(
    logits_ptr, token_ids_ptr, wanted_ptr, greater_ptr, vocab, stride, num_pieces, PIECE: tl.constexpr
):  # fmt: skip
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(wanted_ptr + row) >= 0.0:
        own = tl.load(logits_ptr + row * stride + tl.load(token_ids_ptr + row))
        token = piece * PIECE + tl.arange(0, PIECE)
        x = tl.load(logits_ptr + row * stride + token, mask=token < vocab, other=float("-inf"))
        tl.store(greater_ptr + row * num_pieces + piece, tl.sum((x > own).to(tl.int32), axis=0))


@triton.jit
def _next_listed(keys, ids, key, token):
    """The best listed token behind this one, by key and then by id."""
    behind = (keys > key) | ((keys == key) & (ids > token))
    key = tl.min(tl.where(behind, keys, NO_KEY), axis=0)
    return key, tl.min(tl.where(behind & (keys == key), ids, _NO_ID), axis=0)


@triton.jit
def _next_of_row(logits_ptr, vocab, value, token, TILE: tl.constexpr):
    """The best token of a whole row behind this one, by logit and then by id; NaN counts as -inf."""
    best = tl.full((), float("-inf"), tl.float32)
    best_id = tl.full((), _NO_ID, tl.int32)
    for first in range(0, vocab, TILE):
        ids = first + tl.arange(0, TILE)
        x = tl.load(logits_ptr + ids, mask=ids < vocab, other=float("-inf"))
        x = tl.where(x != x, float("-inf"), x)
        behind = (ids < vocab) & ((x < value) | ((x == value) & (ids > token)))
        tile_best = tl.max(tl.where(behind, x, float("-inf")), axis=0)
        tile_id = tl.min(tl.where(behind & (x == tile_best), ids, _NO_ID), axis=0)
        is_better = (tile_id != _NO_ID) & ((tile_best > best) | (best_id == _NO_ID))
        best = tl.where(is_better, tile_best, best)
        best_id = tl.where(is_better, tile_id, best_id)
    return best, best_id


@triton.jit
def _logprob(z, log_mass):
    value = z - log_mass
    return tl.where(value >= _MIN_LOGPROB, value, _MIN_LOGPROB)


@triton.jit(
    do_not_specialize=[
        "token_ids_ptr",
        "wanted_ptr",
        "num_top_ptr",
        "row_stride",
        "top_stride",
        "width",
    ]
)
def _finish_kernel(
    logits_ptr,
    token_ids_ptr,
    wanted_ptr,
    num_top_ptr,
    piece_best_ptr,
    piece_mass_ptr,
    greater_ptr,
    count_ptr,
    ids_ptr,
    keys_ptr,
    out_ids_ptr,
    out_logprobs_ptr,
    out_ranks_ptr,
    vocab,
    stride,
    num_pieces,
    row_stride,
    top_stride,
    width,
    PIECES: tl.constexpr,
    CAPACITY: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program per row."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(wanted_ptr + row) >= 0.0:
        best = row_best(piece_best_ptr, row, num_pieces, PIECES)
        log_mass = float("nan")
        if is_finite(best):
            mass = row_mass(piece_best_ptr, piece_mass_ptr, row, best, 1.0, num_pieces, PIECES)
            log_mass = tl.log(mass.to(tl.float32))
        piece = tl.arange(0, PIECES)
        greater = tl.load(
            greater_ptr + row * num_pieces + piece, mask=piece < num_pieces, other=0
        )  # fmt: skip
        tl.store(out_ranks_ptr + row, 1 + tl.sum(greater, axis=0))
        own_id = tl.load(token_ids_ptr + row)
        own = tl.load(logits_ptr + row * stride + own_id)
        at = row * row_stride
        tl.store(out_ids_ptr + at, own_id.to(tl.int32))
        tl.store(out_logprobs_ptr + at, _logprob(own - best, log_mass))

        num_top = tl.load(num_top_ptr + row)
        for first in range(0, width, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            unused = (column > num_top) & (column < width)
            tl.store(out_ids_ptr + at + column * top_stride, -1, mask=unused)
            tl.store(out_logprobs_ptr + at + column * top_stride, 0.0, mask=unused)
        nth = tl.full((), 1, tl.int32)
        token = tl.full((), -1, tl.int32)
        count = tl.load(count_ptr + row)
        if count >= 0:
            lane = tl.arange(0, CAPACITY)
            ids = tl.load(ids_ptr + row * CAPACITY + lane, mask=lane < count, other=_NO_ID)
            keys = listed_keys(keys_ptr + row * CAPACITY, count, CAPACITY)
            key = tl.full((), -1, tl.int32)
            while nth <= num_top:
                key, token = _next_listed(keys, ids, key, token)
                tl.store(out_ids_ptr + at + nth * top_stride, token)
                tl.store(out_logprobs_ptr + at + nth * top_stride, _logprob(z_of(key), log_mass))
                nth += 1
        else:
            value = tl.full((), float("inf"), tl.float32)
            while nth <= num_top:
                value, token = _next_of_row(
                    logits_ptr + row * stride, vocab, value, token, CAPACITY
                )
                exists = token != _NO_ID
                tl.store(out_ids_ptr + at + nth * top_stride, tl.where(exists, token, -1))
                tl.store(out_logprobs_ptr + at + nth * top_stride, _logprob(value - best, log_mass))
                nth += 1


def token_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `pillion.kernels.token_logprobs.token_logprobs`."""
    num_rows, device = logits.shape[0], logits.device
    ids = torch.empty((num_rows, 1 + num_top), dtype=torch.int32, device=device)
    logprobs = torch.empty((num_rows, 1 + num_top), dtype=torch.float32, device=device)
    ranks = torch.empty(num_rows, dtype=torch.int32, device=device)
    write_logprobs(
        logits,
        torch.ones(num_rows, dtype=torch.float32, device=device),
        torch.full((num_rows,), num_top, dtype=torch.int32, device=device),
        token_ids,
        ids,
        logprobs,
        ranks,
    )
    return ids, logprobs, ranks


def write_logprobs(
    logits: torch.Tensor,
    wanted: torch.Tensor,
    num_top: torch.Tensor,
    token_ids: torch.Tensor,
    ids: torch.Tensor,
    logprobs: torch.Tensor,
    ranks: torch.Tensor,
) -> None:
    """See `pillion.kernels.token_logprobs.write_logprobs`."""
    num_rows, vocab = logits.shape
    if num_rows == 0:
        return
    # One type, so that no variant is compiled when a prompt's tokens are first asked for.
    token_ids, width = token_ids.to(torch.int32).contiguous(), ids.shape[1]
    found = list_best(logits, wanted, num_top)
    num_pieces = triton.cdiv(vocab, PIECE)
    greater = torch.empty_like(found.piece_ids)
    _rank_kernel[(num_rows, num_pieces)](
        logits, token_ids, wanted, greater, vocab, logits.stride(0), num_pieces, PIECE=PIECE
    )
    _finish_kernel[(num_rows,)](
        logits,
        token_ids,
        wanted,
        num_top,
        found.piece_best,
        found.piece_mass,
        greater,
        found.num_listed,
        found.ids,
        found.keys,
        ids,
        logprobs,
        ranks,
        vocab,
        logits.stride(0),
        num_pieces,
        ids.stride(0),
        ids.stride(1),
        width,
        PIECES=triton.next_power_of_2(num_pieces),
        CAPACITY=CAPACITY,
        COLUMNS=_COLUMNS,
        num_warps=8,
    )
