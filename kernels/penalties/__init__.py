"""Presence, frequency and repetition penalties."""

from typing import Final

import torch

from pillion.kernels.penalties import cpu, reference

IN_PROMPT: Final = reference.IN_PROMPT
MAX_COUNT: Final = reference.MAX_COUNT


def apply_penalties(
    logits: torch.Tensor,
    token_counts: torch.Tensor,
    slots: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> None:
    """Lowers (or raises) the logits of tokens that occurred, see `reference` for the formulas.

    logits: [n, vocab] float32. token_counts: [slots, vocab] int16; the lower 15 bits count the token in the
    output, up to MAX_COUNT, and the sign bit (IN_PROMPT) tells that the prompt has it. slots: [n] int64.
    repetition (1 is neutral), frequency and presence (0 is neutral): [n] float32. Writes: logits.
    """
    if logits.device.type == "cpu":
        cpu.apply_penalties(logits, token_counts, slots, repetition, frequency, presence)
    else:
        reference.apply_penalties(logits, token_counts, slots, repetition, frequency, presence)
