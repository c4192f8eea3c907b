"""Specification of sampling: all rows in the same straight line, no wait for the device."""

import math
from typing import Final

import torch

from pillion.kernels.gumbel_noise.reference import gumbel_noise
from pillion.kernels.sampling_threshold.reference import sampling_threshold

MIN_TEMPERATURE: Final = 1e-5


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
    """See the public function."""
    greedy_ids, best = greedy(logits)
    is_sampled = temperature >= MIN_TEMPERATURE
    scaled = scale(logits, best, torch.where(is_sampled, temperature, 1.0))
    vocabulary = torch.arange(logits.shape[-1], dtype=torch.int32, device=logits.device)
    score = gumbel_noise(seeds, positions, vocabulary).add_(scaled)
    if any_filter:
        threshold = sampling_threshold(scaled, min_p, top_k, top_p)
        score.masked_fill_(scaled < threshold[:, None], -math.inf)
    sampled_ids = score.argmax(-1).to(torch.int32)
    return torch.where(is_sampled, sampled_ids, greedy_ids), best


def greedy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The best id of each row, the lowest among equals, [n] int32, and its logit, [n] float32."""
    if logits.device.type == "cpu":
        # NumPy's argmax uses vector instructions; torch's takes seven times as long on one core.
        best_ids = torch.from_numpy(logits.numpy().argmax(-1))
    else:
        best_ids = logits.argmax(-1)
    best = logits.gather(-1, best_ids[:, None])[:, 0]
    return best_ids.to(torch.int32), best


def scale(logits: torch.Tensor, best: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """z of the specification, [n, vocab], in place of the logits. Subtracting first keeps it below overflow."""
    return logits.sub_(best[:, None]).div_(temperature[:, None])
