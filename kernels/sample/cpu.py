"""The same choice with less arithmetic, which may look at the data.

Noise is the cost: two logarithms for each token of the vocabulary. Most tokens cannot win, and a bound shows
which. Rows with filters take noise for the kept tokens alone. Rows without take the random bits u of every
token, but since -log(1 - u) >= u the score is at most

    z - log(u)

so the token with the highest bound gives a score that a winner must reach, and only the few tokens whose
bound reaches it are scored exactly.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from pillion.kernels.gumbel_noise import gumbel_noise
from pillion.kernels.gumbel_noise.cpu import hash_tokens
from pillion.kernels.gumbel_noise.reference import mix32, row_keys
from pillion.kernels.sample import reference
from pillion.kernels.sampling_threshold import sampling_threshold

# Elements that are hashed at once: about what a core's second-level cache holds twice.
_BLOCK_ELEMENTS: Final = 2**17
# The bound and the exact score round differently, by some 1e-6 of numbers below 100.
_ROUNDING_SLACK: Final = 1e-3


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    min_p: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the public function."""
    vocab_size = logits.shape[-1]
    token_ids, best = reference.greedy(logits)
    is_sampled = (temperature >= reference.MIN_TEMPERATURE) & torch.isfinite(best)
    is_filtered = (min_p > 0.0) | (top_k < vocab_size) | (top_p < 1.0)
    rows = torch.nonzero(is_sampled & is_filtered)[:, 0]
    if len(rows):
        scaled = reference.scale(_take(logits, rows), best[rows], temperature[rows])
        threshold = sampling_threshold(scaled, min_p[rows], top_k[rows], top_p[rows])
        kept = scaled.numpy() >= threshold.numpy()[:, None]
        token_ids[rows] = _choose_among(kept, scaled, seeds[rows], positions[rows])
    rows = torch.nonzero(is_sampled & ~is_filtered)[:, 0]
    if len(rows):
        scaled = reference.scale(_take(logits, rows), best[rows], temperature[rows])
        token_ids[rows] = _choose_from_all(scaled, seeds[rows], positions[rows])
    return token_ids, best


def _take(logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """These rows; without a copy if they are all rows."""
    return logits if len(rows) == len(logits) else logits[rows]


def _choose_from_all(
    scaled: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Unfiltered rows, cut into blocks that stay in the cache from the hash to the bound."""
    num_rows, vocab_size = scaled.shape
    low, high = row_keys(seeds, positions)
    mixed_ids = mix32(torch.arange(vocab_size, dtype=torch.int32))
    can_win = np.empty(scaled.shape, np.bool_)
    block = min(num_rows, max(1, _BLOCK_ELEMENTS // vocab_size))
    # Fresh pages would cost as much as the arithmetic: all blocks share this memory.
    bits_buffer = torch.empty(block, vocab_size, dtype=torch.int32)
    bound_buffer = torch.empty(block, vocab_size)
    for first in range(0, num_rows, block):
        rows = slice(first, min(first + block, num_rows))
        bits = bits_buffer[: rows.stop - first]
        bound = bound_buffer[: rows.stop - first]
        hash_tokens(mixed_ids, low[rows], high[rows], bits, bound.view(torch.int32))
        bound.copy_(bits).add_(0.5).mul_(2.0**-31).log_()
        torch.sub(scaled[rows], bound, out=bound)
        leader = torch.from_numpy(bound.numpy().argmax(-1))[:, None]
        needed = gumbel_noise(seeds[rows], positions[rows], leader)
        needed += scaled[rows].gather(-1, leader)
        needed -= _ROUNDING_SLACK
        np.greater_equal(bound.numpy(), needed.numpy(), out=can_win[rows])
    return _choose_among(can_win, scaled, seeds, positions)


def _choose_among(
    allowed: npt.NDArray[np.bool_],
    scaled: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """argmax(z + g) over the allowed tokens of each row, [n] int32. Each row allows at least one."""
    num_rows, vocab_size = scaled.shape
    rows, ids = np.divmod(np.flatnonzero(allowed), vocab_size)
    counts = np.bincount(rows, minlength=num_rows)
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    candidates = np.zeros((num_rows, counts.max()), np.int64)
    candidates[rows, columns] = ids
    token_ids = torch.from_numpy(candidates)
    score = gumbel_noise(seeds, positions, token_ids).add_(scaled.gather(-1, token_ids))
    unused = torch.arange(token_ids.shape[1]) >= torch.from_numpy(counts)[:, None]
    score.masked_fill_(unused, -math.inf)
    return token_ids.gather(-1, score.argmax(-1, keepdim=True))[:, 0].to(torch.int32)
