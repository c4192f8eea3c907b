"""Case grid of token bitmasks: vocabularies around a word's end, empty, full and random sets."""

from dataclasses import dataclass
from typing import Final

import torch


@dataclass(frozen=True, slots=True)
class Case:
    """`density`: share of the tokens that are allowed."""

    num_rows: int
    vocab_size: int
    density: float
    seed: int = 0

    def inputs(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits, bitmask, and the same sets as booleans [n, vocab]."""
        generator = torch.Generator().manual_seed(self.seed)
        logits = torch.randn(self.num_rows, self.vocab_size, generator=generator)
        allowed = torch.rand(self.num_rows, self.vocab_size, generator=generator) < self.density
        num_words = -(-self.vocab_size // 32)
        bits = torch.zeros(self.num_rows, num_words * 32, dtype=torch.int64)
        bits[:, : self.vocab_size] = allowed
        words = (bits.view(self.num_rows, num_words, 32) << torch.arange(32)).sum(-1)
        return logits.to(device), words.to(torch.int32).to(device), allowed.to(device)


CASES: Final = (
    Case(0, 40, 0.5),
    Case(1, 1, 1.0),
    Case(3, 31, 0.5),
    Case(3, 32, 0.5),
    Case(3, 33, 0.5),
    Case(2, 64, 0.0),
    Case(2, 65, 1.0),
    Case(4, 49_152, 0.01),
)
