"""Thresholds of rows whose best tokens are too many for a list: whole rows are read, some times over.

Each pass weighs the tokens up to eight keys of an interval and goes on with the eighth that holds the
threshold: first eighths of z's range, until a list may hold what is left, then eighths of the keys' range,
which ends even where all tokens tie.
"""

import triton
import triton.language as tl

from pillion.kernels.sampling_threshold.triton_rows import (
    LAST_KEY,
    collect,
    key_of,
    listed_keys,
    row_best,
    smallest_key,
    tempered,
    weight_of,
    z_of,
)

_PIVOTS = tl.constexpr(8)
_PASSES_BEFORE_LIST = tl.constexpr(3)
# What select_kernel leaves in the count of a row that it can't decide, and what is left where a list is of no use.
UNDECIDED = tl.constexpr(-2)
UNLISTED = tl.constexpr(-1)


@triton.jit
def _weights_up_to(
    logits_ptr, best, temperature, pivots, vocab, COUNTS: tl.constexpr, TILE: tl.constexpr
):
    """Of each pivot: how many tokens of the row have no larger key, or their mass; [8] float64."""
    lane = tl.arange(0, TILE)[None, :]
    sums = tl.zeros([_PIVOTS, TILE], tl.float64)
    x = tl.load(logits_ptr + lane, mask=lane < vocab, other=float("-inf"))
    for first in range(0, vocab, TILE):
        # Asked for ahead: there is one program on a multiprocessor to hide the latency.
        following = first + TILE + lane
        next_x = tl.load(logits_ptr + following, mask=following < vocab, other=float("-inf"))
        z = tempered(x, best, temperature)
        if COUNTS:
            weight = (first + lane < vocab).to(tl.float64)
        else:
            weight = weight_of(z)
        sums += tl.where(key_of(z) <= pivots[:, None], weight, 0.0)
        x = next_x
    return tl.sum(sums, axis=1)


@triton.jit
def _pivots(low, high, spread, num_passes):
    """Eight keys in (low, high], ascending, the last one high."""
    nth = tl.arange(0, _PIVOTS)
    of_keys = low + (((high - low).to(tl.int64) * (nth + 1) + _PIVOTS - 1) // _PIVOTS).to(tl.int32)
    from_z = tl.where(low < 0, 0.0, low.to(tl.float32, bitcast=True))
    to_z = tl.minimum(high.to(tl.float32, bitcast=True), tl.maximum(spread, 8.0 * from_z))
    of_z = key_of(from_z + (to_z - from_z) * ((nth + 1) * (1.0 / _PIVOTS)))
    of_z = tl.minimum(tl.maximum(of_z, low + 1), high)
    pivots = tl.where(num_passes < _PASSES_BEFORE_LIST, of_z, of_keys)
    return tl.where(nth == _PIVOTS - 1, high, pivots)


@triton.jit
def _search(
    logits_ptr,
    group_best_ptr,
    active_ptr,
    ids_ptr,
    keys_ptr,
    best,
    temperature,
    wanted,
    high,
    spread,
    vocab,
    num_groups,
    COUNTS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """The smallest key up to which there are `wanted` tokens, or that share of the mass up to `high`; else high."""
    low = tl.full((), -1, tl.int32)
    base = tl.full((), 0.0, tl.float64)
    target = wanted
    num_passes = tl.full((), 0, tl.int32)
    count = tl.full((), -1, tl.int32)
    while (low + 1 < high) & (count < 0):
        pivots = _pivots(low, high, spread, num_passes)
        sums = _weights_up_to(logits_ptr, best, temperature, pivots, vocab, COUNTS, TILE)
        if not COUNTS:
            target = tl.where(num_passes == 0, wanted * tl.max(sums, axis=0), target)
        reached = sums >= target
        high = tl.min(tl.where(reached, pivots, high), axis=0)
        low = tl.max(tl.where(reached, low, pivots), axis=0)
        base = tl.max(tl.where(reached, base, sums), axis=0)
        num_passes += 1
        if num_passes == _PASSES_BEFORE_LIST:
            found = collect(
                logits_ptr, group_best_ptr, active_ptr, ids_ptr, keys_ptr, best, temperature,
                low, high, vocab, num_groups, GROUPS, GROUP, TILE, CAPACITY,
            )  # fmt: skip
            count = tl.where(found <= CAPACITY, found, -1)
    if low + 1 < high:
        keys = listed_keys(keys_ptr, count, CAPACITY)
        if COUNTS:
            weights = (keys <= LAST_KEY).to(tl.float64)
        else:
            weights = tl.where(keys <= LAST_KEY, weight_of(z_of(keys)), 0.0)
        high = smallest_key(keys, weights, base, target, low, high)
    return high


@triton.jit(
    do_not_specialize=["temperature_ptr", "min_p_ptr", "top_k_ptr", "top_p_ptr"],
)
def search_kernel(
    logits_ptr,
    temperature_ptr,
    min_p_ptr,
    top_k_ptr,
    top_p_ptr,
    piece_best_ptr,
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
    PIECES: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """One program per row. Writes: the thresholds of undecided rows, which are unlisted then."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(count_ptr + row) == UNDECIDED:
        temperature = tl.load(temperature_ptr + row)
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        best = row_best(piece_best_ptr, row, num_pieces, PIECES)
        group = tl.arange(0, GROUPS)
        x = tl.load(
            group_best_ptr + row * num_groups + group, mask=group < num_groups, other=float("-inf")
        )
        depth = -tempered(x, best, temperature)
        # Most tokens lie somewhat deeper than the deepest best token of a group.
        spread = 3.0 * tl.max(tl.where(depth < float("inf"), depth, 0.0), axis=0) + 1e-30
        kept = key_of(tl.log(tl.load(min_p_ptr + row)))
        if top_k < vocab:
            kth = _search(
                logits_ptr + row * stride, group_best_ptr + row * num_groups,
                active_ptr + row * num_groups, ids_ptr + row * CAPACITY, keys_ptr + row * CAPACITY,
                best, temperature, top_k.to(tl.float64), tl.full((), LAST_KEY, tl.int32), spread,
                vocab, num_groups, True, GROUPS, GROUP, TILE, CAPACITY,
            )  # fmt: skip
            kept = tl.minimum(kept, kth)
        if top_p < 1.0:
            kept = _search(
                logits_ptr + row * stride, group_best_ptr + row * num_groups,
                active_ptr + row * num_groups, ids_ptr + row * CAPACITY, keys_ptr + row * CAPACITY,
                best, temperature, top_p.to(tl.float64), kept, spread,
                vocab, num_groups, False, GROUPS, GROUP, TILE, CAPACITY,
            )  # fmt: skip
        tl.store(threshold_ptr + row, z_of(kept))
        tl.store(count_ptr + row, UNLISTED)
