"""Specification of the penalties, with c the token's count in the output:

    l = l / repetition if l > 0 else l * repetition     if the prompt or the output has the token
    l = l - frequency * c
    l = l - presence                                    if c > 0

The first from Keskar et al., "CTRL" (2019), section 4.1, with its sign fixed as everybody does; the others
as in OpenAI's API.
"""

from typing import Final

import torch

IN_PROMPT: Final = -(2**15)
MAX_COUNT: Final = 2**15 - 1


def apply_penalties(
    logits: torch.Tensor,
    token_counts: torch.Tensor,
    slots: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> None:
    """See the public function."""
    packed = token_counts[slots]
    seen = packed != 0
    logits.copy_(
        penalized(
            logits,
            (packed & MAX_COUNT).to(torch.float32),
            torch.where(seen, repetition[:, None], 1.0),
            frequency[:, None],
            presence[:, None],
        )
    )


def penalized(
    logits: torch.Tensor,
    counts: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """The formulas, elementwise; `repetition` is 1 for tokens that were not seen."""
    logits = torch.where(logits > 0.0, logits / repetition, logits * repetition)
    return logits - frequency * counts - presence * (counts > 0.0)
