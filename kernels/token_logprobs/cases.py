"""Case grid of log-probabilities: no top, all as top, ties, tokens that cannot occur."""

from dataclasses import dataclass
from typing import Final

import torch


@dataclass(frozen=True, slots=True)
class Case:
    """`masked`: share of the logits that are -inf."""

    num_rows: int
    vocab_size: int
    num_top: int
    levels: int = 0
    masked: float = 0.0
    seed: int = 0

    def inputs(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and token ids; at least the last token of each row is possible."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.num_rows, self.vocab_size)
        logits = torch.randn(shape, generator=generator) * 5
        if self.levels:
            logits = torch.round(logits / 5 * self.levels)
        is_masked = torch.rand(shape, generator=generator) < self.masked
        is_masked[:, -1] = False
        logits.masked_fill_(is_masked, -torch.inf)
        ids = torch.randint(0, self.vocab_size, (self.num_rows,), generator=generator)
        return logits.to(device), ids.to(device)


CASES: Final = (
    Case(0, 5, 2),
    Case(1, 1, 0),
    Case(3, 1, 1),
    Case(5, 7, 7),
    Case(9, 300, 20, levels=1),
    Case(9, 300, 5, masked=0.9),
    Case(4, 49_152, 0),
    Case(4, 49_152, 64),
)
