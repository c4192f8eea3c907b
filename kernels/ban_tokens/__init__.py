"""Forbids lists of tokens, and remembers the best of them for rows that would have nothing left."""

import torch

from pillion.kernels.ban_tokens import reference


def ban_tokens(
    logits: torch.Tensor, token_ids: torch.Tensor, is_banned: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sets the logits of the banned tokens to -inf.

    logits: [n, vocab] float32. token_ids: [n, w] int64, each inside the vocabulary, repeats allowed.
    is_banned: [n, w] bool; entries that are false do nothing. Writes: logits. Returns each row's best banned
    token (lowest id among equals), [n] int64, and its logit before, [n] float32: -inf if there is none.
    """
    return reference.ban_tokens(logits, token_ids, is_banned)
