"""What the kernels of this folder share: tempered logits as ordered integers, and searches among them.

z = (x - best) / temperature is at most 0, so the bits of |z| as an integer, its key, order like -z: the
smaller the key, the better the token. Equal keys are equal z.
"""

import triton
import triton.language as tl

# Keys of z = -inf and of no token.
LAST_KEY = tl.constexpr(0x7F800000)
NO_KEY = tl.constexpr(0x7FFFFFFF)

_LOG2_E = tl.constexpr(1.44269502162933349609375)
_LOG2_E_REST = tl.constexpr(1.925963033500012e-8)
_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def tempered(x, best, temperature):
    """z of the specification."""
    return tl.div_rn(x - best, temperature)


@triton.jit
def key_of(z):
    """See above."""
    return tl.abs(z).to(tl.int32, bitcast=True)


@triton.jit
def z_of(key):
    """The inverse of `key_of`."""
    return -key.to(tl.float32, bitcast=True)


@triton.jit
def weight_of(z):
    """exp(z) as float64, with float32's precision: the exponent keeps what its product with log2(e) rounds away."""
    z = tl.maximum(z, -200.0)
    exponent = z * _LOG2_E
    rest = tl.fma(z, _LOG2_E, -exponent) + z * _LOG2_E_REST
    return (tl.exp2(exponent) * (1.0 + rest * _LN_2)).to(tl.float64)


@triton.jit
def row_best(piece_best_ptr, row, num_pieces, PIECES: tl.constexpr):
    """A row's largest logit: NaN if the row has one."""
    piece = tl.arange(0, PIECES)
    x = tl.load(
        piece_best_ptr + row * num_pieces + piece, mask=piece < num_pieces, other=float("-inf")
    )
    is_nan = x != x
    best = tl.max(tl.where(is_nan, float("-inf"), x), axis=0)
    return tl.where(tl.max(is_nan.to(tl.int32), axis=0) != 0, float("nan"), best)


@triton.jit
def is_finite(x):
    """Whether it is a number."""
    return tl.abs(x) < float("inf")


@triton.jit
def smallest_key(keys, weights, base, target, low, high):
    """The smallest key in (low, high] up to which the weights add up to target - base; high if none does."""
    while low + 1 < high:
        middle = low + (high - low) // 2
        reached = base + tl.sum(tl.where(keys <= middle, weights, 0), axis=0) >= target
        low = tl.where(reached, low, middle)
        high = tl.where(reached, middle, high)
    return high


@triton.jit
def collect(
    logits_ptr,
    group_best_ptr,
    active_ptr,
    ids_ptr,
    keys_ptr,
    best,
    temperature,
    low,
    high,
    vocab,
    num_groups,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Lists the tokens of a row with a key in (low, high], by id; reads only the groups that can have one.

    Returns how many there are. If they are more than CAPACITY, that is all that is known of them.
    Writes: the row's active_ptr [num_groups], ids_ptr and keys_ptr [CAPACITY].
    """
    tl.debug_barrier()
    group = tl.arange(0, GROUPS)
    group_best = tl.load(group_best_ptr + group, mask=group < num_groups, other=float("-inf"))
    active = (key_of(tempered(group_best, best, temperature)) <= high) & (group < num_groups)
    tl.store(active_ptr + tl.cumsum(active.to(tl.int32), axis=0) - 1, group, mask=active)
    num_lanes = tl.sum(active.to(tl.int32), axis=0) * GROUP
    tl.debug_barrier()
    count = tl.full((), 0, tl.int32)
    first = tl.full((), 0, tl.int32)
    while (first < num_lanes) & (count <= CAPACITY):
        lane = first + tl.arange(0, TILE)
        inside = lane < num_lanes
        token = tl.load(active_ptr + lane // GROUP, mask=inside, other=0) * GROUP + lane % GROUP
        inside = inside & (token < vocab)
        x = tl.load(logits_ptr + token, mask=inside, other=float("-inf"))
        key = key_of(tempered(x, best, temperature))
        taken = inside & (key > low) & (key <= high)
        place = count + tl.cumsum(taken.to(tl.int32), axis=0) - 1
        fits = taken & (place < CAPACITY)
        tl.store(ids_ptr + place, token, mask=fits)
        tl.store(keys_ptr + place, key, mask=fits)
        count += tl.sum(taken.to(tl.int32), axis=0)
        first += TILE
    tl.debug_barrier()
    return count


@triton.jit
def listed_keys(keys_ptr, count, CAPACITY: tl.constexpr):
    """The keys of a list of so many, NO_KEY behind them."""
    lane = tl.arange(0, CAPACITY)
    return tl.load(keys_ptr + lane, mask=lane < count, other=NO_KEY)
