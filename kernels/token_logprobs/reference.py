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
    logprobs = torch.cat((own, top), dim=-1).sub_(_normalizers(logits))
    logprobs.nan_to_num_(nan=MIN_LOGPROB, neginf=MIN_LOGPROB, posinf=0.0).clamp_min_(MIN_LOGPROB)
    ranks = (logits > own).sum(-1) + 1
    ids = torch.cat((own_ids, top_ids), dim=-1)
    return ids.to(torch.int32), logprobs, ranks.to(torch.int32)


def _normalizers(logits: torch.Tensor) -> torch.Tensor:
    """log(sum(exp(row))) of each row, [n, 1], whose rounding does not depend on how many rows there are.

    Threads share a lone row, but take whole ones of several: so each row is summed as a lone one.
    """
    sums = [torch.logsumexp(row, dim=-1) for row in logits]
    return torch.stack(sums)[:, None] if sums else logits.new_empty((0, 1))


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
    rows = torch.nonzero(wanted >= 0.0)[:, 0]
    width = ids.shape[1]
    num_found = min(width - 1, logits.shape[1])
    found, values, ranks[rows] = token_logprobs(logits[rows], token_ids[rows], num_found)
    missing = (0, width - 1 - num_found)
    found = torch.nn.functional.pad(found, missing, value=-1)
    column = torch.arange(width, device=ids.device)
    ids[rows] = found.masked_fill_(column > num_top[rows, None], -1)
    logprobs[rows] = torch.nn.functional.pad(values, missing)
