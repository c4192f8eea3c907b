"""Specification and CPU path of bans."""

import math

import torch


def ban_tokens(
    logits: torch.Tensor, token_ids: torch.Tensor, is_banned: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the public function."""
    num_rows, vocab_size = logits.shape
    if token_ids.shape[1] == 0:
        nothing = torch.full((num_rows,), -math.inf, device=logits.device)
        return torch.zeros(num_rows, dtype=torch.int64, device=logits.device), nothing
    values = logits.gather(1, token_ids).masked_fill_(~is_banned, -math.inf)
    best = values.amax(1)
    is_best = is_banned & (values == best[:, None])
    best_ids = torch.where(is_best, token_ids, vocab_size).amin(1).clamp_max_(vocab_size - 1)
    # Adding lets idle entries, which all name some token, add nothing to it.
    logits.scatter_add_(1, token_ids, torch.where(is_banned, -math.inf, 0.0))
    return best_ids, best
