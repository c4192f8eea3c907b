"""Thresholds without a sort, and mostly with one reading of the logits.

A first launch reads them all and leaves the best logit of each group of 128 tokens. The k-th best of these is
a bound that at least k tokens reach, and nearly only they do: a program per row lists those tokens from the few
groups that have one, and finds the k-th largest and the nucleus in the list, bit by bit. Rows of which no
list can tell (flat distributions, large top-k, ties) are left to `triton_search`.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from pillion.kernels.sampling_threshold.triton_rows import (
    LAST_KEY,
    collect,
    is_finite,
    key_of,
    listed_keys,
    row_best,
    smallest_key,
    tempered,
    weight_of,
    z_of,
)
from pillion.kernels.sampling_threshold.triton_search import UNDECIDED, UNLISTED, search_kernel

GROUP = 128  # tokens
GROUPS_OF_PIECE = 32
PIECE = GROUP * GROUPS_OF_PIECE  # tokens of a program that reads all
CAPACITY = 2048  # tokens of a list
# Best groups whose tokens a nucleus is looked for in first, where nothing but top-p bounds it.
_NUCLEUS_GROUPS = tl.constexpr(256)
_MIN_TEMPERATURE = tl.constexpr(1e-5)


class Selection(NamedTuple):
    """What is known of n rows; p pieces of PIECE tokens, g = p * GROUPS_OF_PIECE groups."""

    # [n, p] float32, NaN if the piece has one; int32, the lowest id among equals
    piece_best: torch.Tensor
    piece_ids: torch.Tensor
    # [n, p] float64; sum of exp((x - piece_best) / temperature), where it was asked for
    piece_mass: torch.Tensor
    # [n, g] float32; NaN left out
    group_best: torch.Tensor
    # [n] float32; -inf if nothing is dropped
    threshold: torch.Tensor
    # [n] int32; tokens in a row's list, which holds all that reach the threshold; below 0: it has none
    num_listed: torch.Tensor
    # [n, CAPACITY] int32 both; ids ascending, and keys as in triton_rows
    ids: torch.Tensor
    keys: torch.Tensor


@triton.jit(do_not_specialize=["temperature_ptr", "top_p_ptr"])
def pieces_kernel(
    logits_ptr,
    temperature_ptr,
    top_p_ptr,
    piece_best_ptr,
    piece_ids_ptr,
    piece_mass_ptr,
    group_best_ptr,
    vocab,
    stride,
    num_pieces,
    MASS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One program per row and piece. Without MASS, that of greedy rows and of rows without top-p is left out."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperature_ptr + row)
    if temperature >= 0.0:
        group = tl.arange(0, GROUPS)
        token = (
            piece * GROUPS * GROUP + group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        )  # fmt: skip
        x = tl.load(logits_ptr + row * stride + token, mask=token < vocab, other=float("-inf"))
        is_nan = x != x
        x = tl.where(is_nan, float("-inf"), x)
        group_best = tl.max(x, axis=1)
        best = tl.max(group_best, axis=0)
        best_id = tl.min(tl.min(tl.where(x == best, token, 2147483647), axis=1), axis=0)
        broken = tl.max(tl.max(is_nan.to(tl.int32), axis=1), axis=0) != 0
        at = row * num_pieces + piece
        tl.store(piece_best_ptr + at, tl.where(broken, float("nan"), best))
        tl.store(piece_ids_ptr + at, best_id)
        tl.store(group_best_ptr + at * GROUPS + group, group_best)
        if MASS or (temperature >= _MIN_TEMPERATURE) & (tl.load(top_p_ptr + row) < 1.0):
            weight = tl.where(
                x > float("-inf"), weight_of(tempered(x, best, temperature)), 0.0
            )  # fmt: skip
            tl.store(piece_mass_ptr + at, tl.sum(tl.sum(weight, axis=1), axis=0))


@triton.jit
def row_mass(
    piece_best_ptr, piece_mass_ptr, row, best, temperature, num_pieces, PIECES: tl.constexpr
):
    """Sum of exp(z) over a row, float64."""
    piece = tl.arange(0, PIECES)
    inside, at = piece < num_pieces, row * num_pieces + piece
    x = tl.load(piece_best_ptr + at, mask=inside, other=float("-inf"))
    mass = tl.load(piece_mass_ptr + at, mask=inside, other=0.0)
    return tl.sum(mass * weight_of(tempered(x, best, temperature)), axis=0)


@triton.jit(do_not_specialize=["temperature_ptr", "min_p_ptr", "top_k_ptr", "top_p_ptr"])
def select_kernel(
    logits_ptr,
    temperature_ptr,
    min_p_ptr,
    top_k_ptr,
    top_p_ptr,
    piece_best_ptr,
    piece_mass_ptr,
    group_best_ptr,
    active_ptr,
    ids_ptr,
    keys_ptr,
    threshold_ptr,
    count_ptr,
    vocab,
    stride,
    num_pieces,
    num_groups,
    ONLY_TOP_K: tl.constexpr,
    PIECES: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """One program per row. ONLY_TOP_K: at least 1, and the other filters are off whatever their pointers say."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    if ONLY_TOP_K:
        top_k = tl.maximum(top_k, 1)
        min_p, top_p = tl.full((), 0.0, tl.float32), tl.full((), 1.0, tl.float32)
    else:
        min_p, top_p = tl.load(min_p_ptr + row), tl.load(top_p_ptr + row)
    best = row_best(piece_best_ptr, row, num_pieces, PIECES)
    has_k, has_p = top_k < vocab, top_p < 1.0
    threshold = tl.full((), float("-inf"), tl.float32)
    count = tl.full((), UNLISTED, tl.int32)
    if (temperature >= _MIN_TEMPERATURE) & is_finite(best) & (has_k | has_p | (min_p > 0.0)):
        row_ids_ptr, row_keys_ptr = ids_ptr + row * CAPACITY, keys_ptr + row * CAPACITY
        nothing = tl.full((), -1, tl.int32)
        floor = key_of(tl.log(min_p))
        cut = floor
        only_p = has_p & (has_k == 0) & (min_p == 0.0)
        num_wanted = tl.minimum(num_groups // 2, _NUCLEUS_GROUPS)
        num_wanted = tl.where(has_k, top_k, num_wanted).to(tl.int32)
        if (has_k | only_p) & (num_wanted <= num_groups):
            group = tl.arange(0, GROUPS)
            x = tl.load(
                group_best_ptr + row * num_groups + group, mask=group < num_groups, other=float("-inf")
            )  # fmt: skip
            keys = tl.where(group < num_groups, key_of(tempered(x, best, temperature)), LAST_KEY)
            ones = tl.full((GROUPS,), 1, tl.int32)
            last = tl.full((), LAST_KEY, tl.int32)
            cut = tl.minimum(floor, smallest_key(keys, ones, 0, num_wanted, nothing, last))
        count = collect(
            logits_ptr + row * stride, group_best_ptr + row * num_groups, active_ptr + row * num_groups,
            row_ids_ptr, row_keys_ptr, best, temperature, nothing, cut, vocab, num_groups,
            GROUPS, GROUP, TILE, CAPACITY,
        )  # fmt: skip
        kept = floor
        if count <= CAPACITY:
            keys = listed_keys(row_keys_ptr, count, CAPACITY)
            if has_k:
                is_listed = (keys <= LAST_KEY).to(tl.int32)
                kth = smallest_key(keys, is_listed, 0, top_k.to(tl.int32), nothing, cut)
                kept = tl.minimum(floor, kth)
            if has_p:
                weights = tl.where(keys <= kept, weight_of(z_of(keys)), 0.0)
                listed_mass = tl.sum(weights, axis=0)
                mass = listed_mass
                if only_p:
                    mass = row_mass(
                        piece_best_ptr, piece_mass_ptr, row, best, temperature, num_pieces, PIECES
                    )
                wanted = top_p.to(tl.float64) * mass
                if only_p & (listed_mass < wanted):
                    count = tl.full((), UNDECIDED, tl.int32)
                kept = smallest_key(keys, weights, 0.0, wanted, nothing, kept)
        else:
            count = tl.where(has_k | has_p, UNDECIDED, UNLISTED)
        threshold = z_of(kept)
    tl.store(threshold_ptr + row, threshold)
    tl.store(count_ptr + row, count)


def sampling_threshold(
    scaled: torch.Tensor, min_p: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """See `pillion.kernels.sampling_threshold.sampling_threshold`."""
    return select(scaled, torch.ones_like(top_p), min_p, top_k, top_p).threshold


def select(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    min_p: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    *,
    any_filter: bool = True,
) -> Selection:
    """The thresholds of z = (logits - max) / temperature, and on the way the best tokens.

    Rows with a temperature below 0 are left out: all that is said of them is a threshold of -inf. `any_filter`:
    whether any row has a filter.

    logits: [n, vocab] float32, rows dense. temperature, min_p, top_p: [n] float32. top_k: [n] int64.
    """
    temperature, min_p, top_k, top_p = (
        column.contiguous() for column in (temperature, min_p, top_k, top_p)
    )
    found = _best_of_pieces(logits, temperature, top_p, mass=False)
    if not any_filter:
        found.threshold.fill_(-torch.inf)
        found.num_listed.fill_(UNLISTED.value)
    elif logits.shape[0]:
        _select(logits, (temperature, min_p, top_k, top_p), found, only_top_k=False)
    return found


def list_best(logits: torch.Tensor, wanted: torch.Tensor, num_best: torch.Tensor) -> Selection:
    """Lists with the `num_best` largest logits of each row, and the mass of each piece at temperature 1.

    Rows have no list where a list can't hold them, or where they are the whole row.

    logits: [n, vocab] float32, rows dense. wanted: [n] float32, 1 or -1: left out. num_best: [n] int32.
    """
    found = _best_of_pieces(logits, wanted, wanted, mass=True)
    if logits.shape[0]:
        _select(logits, (wanted, wanted, num_best, wanted), found, only_top_k=True)
    return found


def _best_of_pieces(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, *, mass: bool
) -> Selection:
    """`mass`: of all rows, not only of those that need it for their threshold."""
    num_rows, vocab = logits.shape
    if logits.stride(-1) != 1:
        raise ValueError("the rows of logits must be dense")
    num_pieces = triton.cdiv(vocab, PIECE)
    found = _empty(num_rows, num_pieces, logits.device)
    if num_rows:
        pieces_kernel[(num_rows, num_pieces)](
            logits,
            temperature,
            top_p,
            found.piece_best,
            found.piece_ids,
            found.piece_mass,
            found.group_best,
            vocab,
            logits.stride(0),
            num_pieces,
            MASS=mass,
            GROUPS=GROUPS_OF_PIECE,
            GROUP=GROUP,
        )
    return found


def _select(
    logits: torch.Tensor,
    settings: tuple[torch.Tensor, ...],
    found: Selection,
    *,
    only_top_k: bool,
) -> None:
    """Writes: thresholds and lists."""
    num_rows, vocab = logits.shape
    num_pieces, num_groups = found.piece_best.shape[1], found.group_best.shape[1]
    active = torch.empty((num_rows, num_groups), dtype=torch.int32, device=logits.device)
    rows = (found.group_best, active, found.ids, found.keys, found.threshold, found.num_listed)
    sizes = (vocab, logits.stride(0), num_pieces, num_groups)
    shapes = {
        "PIECES": triton.next_power_of_2(num_pieces),
        "GROUPS": triton.next_power_of_2(num_groups),
        "GROUP": GROUP,
        "TILE": CAPACITY,
        "CAPACITY": CAPACITY,
    }
    select_kernel[(num_rows,)](
        logits,
        *settings,
        found.piece_best,
        found.piece_mass,
        *rows,
        *sizes,
        ONLY_TOP_K=only_top_k,
        **shapes,
        num_warps=8,
    )
    if not only_top_k:
        search_kernel[(num_rows,)](
            logits, *settings, found.piece_best, *rows, *sizes, **shapes, num_warps=16
        )


def _empty(num_rows: int, num_pieces: int, device: torch.device) -> Selection:
    def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty((num_rows, *shape), dtype=dtype, device=device)

    return Selection(
        piece_best=empty(num_pieces, dtype=torch.float32),
        piece_ids=empty(num_pieces, dtype=torch.int32),
        piece_mass=empty(num_pieces, dtype=torch.float64),
        group_best=empty(num_pieces * GROUPS_OF_PIECE, dtype=torch.float32),
        threshold=empty(dtype=torch.float32),
        num_listed=empty(dtype=torch.int32),
        ids=empty(CAPACITY, dtype=torch.int32),
        keys=empty(CAPACITY, dtype=torch.int32),
    )
