"""Case grid of token bitmasks: vocabularies around a word's end, empty, full and random sets, some rows or all."""

from dataclasses import dataclass
from typing import Final

import torch


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments of `apply_token_bitmask`, and the same sets as booleans [n, vocab]."""

    logits: torch.Tensor
    bitmask: torch.Tensor
    rows: torch.Tensor
    mask_rows: torch.Tensor
    allowed: torch.Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """`density`: share of the tokens that are allowed. `num_restricted` of the rows, in any order."""

    num_rows: int
    vocab_size: int
    density: float
    num_restricted: int
    seed: int = 0

    def inputs(self, device: torch.device) -> Inputs:
        """Rows that are not restricted allow everything; the table of masks has rows of no use."""
        generator = torch.Generator().manual_seed(self.seed)
        logits = torch.randn(self.num_rows, self.vocab_size, generator=generator)
        num_masks = self.num_rows + 2
        sets = torch.rand(num_masks, self.vocab_size, generator=generator) < self.density
        num_words = -(-self.vocab_size // 32)
        bits = torch.zeros(num_masks, num_words * 32, dtype=torch.int64)
        bits[:, : self.vocab_size] = sets
        words = (bits.view(num_masks, num_words, 32) << torch.arange(32)).sum(-1)
        rows = torch.randperm(self.num_rows, generator=generator)[: self.num_restricted]
        mask_rows = torch.randint(num_masks, (self.num_restricted,), generator=generator)
        allowed = torch.ones(self.num_rows, self.vocab_size, dtype=torch.bool)
        allowed[rows] = sets[mask_rows]
        return Inputs(
            logits.to(device),
            words.to(torch.int32).to(device),
            rows.to(device),
            mask_rows.to(device),
            allowed.to(device),
        )


CASES: Final = (
    Case(0, 40, 0.5, 0),
    Case(2, 40, 0.5, 0),
    Case(1, 1, 1.0, 1),
    Case(3, 31, 0.5, 3),
    Case(3, 32, 0.5, 2),
    Case(5, 33, 0.5, 2),
    Case(2, 64, 0.0, 2),
    Case(2, 65, 1.0, 1),
    Case(4, 49_152, 0.01, 3),
)
