"""The same thresholds without sorting whole rows: the best few hundred values decide nearly every row.

They decide a row if they hold its k-th largest value and the mass that top-p wants. The other rows (flat
distributions, large top-k) try again with more values, and at last with all.
"""

from typing import Final

import numpy as np
import torch

from pillion.kernels.sampling_threshold import reference

FIRST_CANDIDATES: Final = 512
_GROWTH: Final = 12


def sampling_threshold(
    scaled: torch.Tensor, min_p: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """See the public function. How many values are sorted depends on the data."""
    return _threshold(scaled, min_p, top_k, top_p, FIRST_CANDIDATES)


def _threshold(
    scaled: torch.Tensor,
    min_p: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    num_candidates: int,
) -> torch.Tensor:
    num_rows, vocab_size = scaled.shape
    if vocab_size <= num_candidates or num_rows == 0:
        return _by_sorting(scaled, min_p, top_k, top_p)
    ranked = _largest(scaled, num_candidates)
    floor = reference.filter_floor(ranked, min_p, top_k)
    mass = reference.kept_mass(ranked, floor)
    undecided = (top_k >= num_candidates) & (top_k < vocab_size)
    # Rows whose first two filters leave tokens, or ties, beyond the candidates: count their mass as well.
    spilled = torch.nonzero((floor <= ranked[:, -1]) & (top_p < 1.0) & ~undecided)[:, 0]
    if len(spilled):
        full_mass = reference.kept_mass(scaled[spilled], floor[spilled])
        undecided[spilled] = mass[spilled] < top_p[spilled].to(torch.float64) * full_mass
        mass[spilled] = full_mass
    threshold = reference.nucleus_threshold(ranked, floor, mass, top_p)
    rows = torch.nonzero(undecided)[:, 0]
    if len(rows):
        threshold[rows] = _threshold(
            scaled[rows], min_p[rows], top_k[rows], top_p[rows], num_candidates * _GROWTH
        )
    return threshold


def _by_sorting(
    scaled: torch.Tensor, min_p: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    # NumPy sorts values alone, with vector instructions; torch.sort carries indices and takes ten times as long.
    ascending = torch.from_numpy(np.sort(scaled.numpy(), axis=-1))
    ranked = ascending.flip(-1)
    floor = reference.filter_floor(ranked, min_p, top_k)
    return reference.nucleus_threshold(ranked, floor, reference.kept_mass(ranked, floor), top_p)


def _largest(scaled: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` largest values of each row in descending order, [n, count]."""
    first = scaled.shape[-1] - count
    best = np.partition(scaled.numpy(), first, axis=-1)[:, first:]
    best.sort(axis=-1)
    return torch.from_numpy(best).flip(-1)
