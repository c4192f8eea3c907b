"""Case grid of bans: none, some, repeats, ties, everything."""

from dataclasses import dataclass
from typing import Final

import torch


@dataclass(frozen=True, slots=True)
class Case:
    """`density`: share of the list entries that are banned."""

    num_rows: int
    vocab_size: int
    width: int
    density: float
    levels: int = 0
    seed: int = 0

    def inputs(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits, token ids and which of them are banned."""
        generator = torch.Generator().manual_seed(self.seed)
        logits = torch.randn(self.num_rows, self.vocab_size, generator=generator)
        if self.levels:
            logits = torch.round(logits * self.levels)
        shape = (self.num_rows, self.width)
        ids = torch.randint(0, self.vocab_size, shape, generator=generator)
        is_banned = torch.rand(shape, generator=generator) < self.density
        return logits.to(device), ids.to(device), is_banned.to(device)


CASES: Final = (
    Case(0, 8, 3, 1.0),
    Case(4, 8, 0, 1.0),
    Case(4, 1, 2, 0.5),
    Case(6, 5, 40, 1.0),
    Case(6, 200, 17, 0.0),
    Case(6, 200, 30, 0.5, levels=1),
    Case(32, 49_152, 160, 0.3),
)
