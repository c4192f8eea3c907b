"""Everything that changes logits before a token is chosen, for rows that differ in what they want changed."""

import torch

from pillion.kernels.edit_logits import reference
from pillion.kernels.edit_logits.reference import (
    ALLOWED_IDS,
    ANY_TOKEN,
    BAD_WORDS,
    LOGIT_BIAS,
    MIN_TOKENS,
    NO_WORD,
    PENALTIES,
    TOKEN_MASK,
    Edited,
    EditTables,
)

__all__ = [
    "ALLOWED_IDS",
    "ANY_TOKEN",
    "BAD_WORDS",
    "LOGIT_BIAS",
    "MIN_TOKENS",
    "NO_WORD",
    "PENALTIES",
    "TOKEN_MASK",
    "EditTables",
    "Edited",
    "edit_logits",
]


def edit_logits(
    logits: torch.Tensor,
    raw: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    features: torch.Tensor,
    wants_logprobs: torch.Tensor,
    tables: EditTables,
) -> Edited:
    """In this order: token mask, allowed ids, bias, penalties, bans (stop ids before min_tokens, bad words).

    logits          [n, vocab] float32, rows dense
    raw             [n, vocab] float32, rows dense
    slots           [n] int64
    positions       [n] int64; where the next token goes
    features        [n] int32; which edits a row wants
    wants_logprobs  [n] float32; at least 0: the row's logits are copied to `raw` first

    Writes: logits of the rows with features, raw of those that want log-probabilities.
    """
    if logits.is_cuda:
        from pillion.kernels.edit_logits import triton_impl

        implementation = triton_impl.edit_logits
    else:
        implementation = reference.edit_logits
    return implementation(logits, raw, slots, positions, features, wants_logprobs, tables)
