"""Specification and CPU path of log-probabilities."""

from typing import Final

import torch

# Small enough to mean "never", and a number that JSON and every client can hold.
MIN_LOGPROB: Final = -9999.0


def token_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See the public function."""
    own_ids = token_ids.to(torch.int64)[:, None]
    own = logits.gather(-1, own_ids)
    top, top_ids = torch.topk(logits, num_top, dim=-1)
    normalizer = torch.logsumexp(logits, dim=-1, keepdim=True)
    logprobs = torch.cat((own, top), dim=-1).sub_(normalizer)
    logprobs.nan_to_num_(nan=MIN_LOGPROB, neginf=MIN_LOGPROB, posinf=0.0).clamp_min_(MIN_LOGPROB)
    ranks = (logits > own).sum(-1) + 1
    ids = torch.cat((own_ids, top_ids), dim=-1)
    return ids.to(torch.int32), logprobs, ranks.to(torch.int32)
