"""Specification of the three filters on tempered logits z whose row maximum is 0.

    t_min_p = log(min_p)                        p_i >= min_p * p_max
    t_top_k = the k-th largest z
    F       = max(t_min_p, t_top_k)
    M       = sum of exp(z_i) over z_i >= F     what the first two filters left
    t_top_p = the largest t with  sum of exp(z_i) over z_i >= t  at least  top_p * M
    t       = max(F, t_top_p)

Weights exp(z) are float32, their sums float64: the order of summation then decides nothing that matters.
"""

import math

import torch


def sampling_threshold(
    scaled: torch.Tensor, min_p: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """See the public function. Sorts whole rows; waits for nothing on the host."""
    ranked = torch.sort(scaled, dim=-1, descending=True).values
    floor = filter_floor(ranked, min_p, top_k)
    return nucleus_threshold(ranked, floor, kept_mass(ranked, floor), top_p)


def filter_floor(ranked: torch.Tensor, min_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """F of the specification, [n].

    ranked: [n, c], the c largest z of each row in descending order; c is at least each top_k that is on.
    """
    num_ranked = ranked.shape[-1]
    kth = ranked.gather(-1, (top_k - 1).clamp(0, num_ranked - 1)[:, None])[:, 0]
    top_k_floor = torch.where(top_k < num_ranked, kth, -math.inf)
    return torch.maximum(top_k_floor, torch.log(min_p))


def kept_mass(scaled: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """M of the specification, [n] float64."""
    weights = torch.exp(scaled).masked_fill_(scaled < floor[:, None], 0.0)
    return weights.sum(-1, dtype=torch.float64)


def nucleus_threshold(
    ranked: torch.Tensor, floor: torch.Tensor, mass: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """t of the specification, [n]; right if the nucleus ends within `ranked`, else its last value."""
    mass_up_to = torch.exp(ranked).to(torch.float64).cumsum_(-1)
    wanted = top_p.to(torch.float64) * mass
    last = torch.searchsorted(mass_up_to, wanted[:, None]).clamp_max_(ranked.shape[-1] - 1)
    top_p_threshold = ranked.gather(-1, last)[:, 0]
    return torch.where(top_p < 1.0, torch.maximum(floor, top_p_threshold), floor)
