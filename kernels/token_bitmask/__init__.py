"""Restricts rows to sets of tokens given as bits."""

import torch

from pillion.kernels.token_bitmask import cpu, reference


def apply_token_bitmask(logits: torch.Tensor, bitmask: torch.Tensor) -> None:
    """Sets the logits of tokens whose bit is 0 to -inf.

    Token id t is bit t % 32 of word t // 32. logits: [n, vocab] float32. bitmask: [n, ceil(vocab / 32)]
    int32. Writes: logits.
    """
    if logits.device.type == "cpu":
        cpu.apply_token_bitmask(logits, bitmask)
    else:
        reference.apply_token_bitmask(logits, bitmask)
