"""Case grid of the filters: distributions from one-hot to flat, ties, and every filter alone and together."""

from dataclasses import dataclass
from typing import Final

import torch

# (min_p, top_k, top_p); top-k 0 stands for off.
FILTERS: Final = (
    (0.0, 0, 1.0),
    (0.1, 0, 1.0),
    (1.0, 0, 1.0),
    (0.0, 1, 1.0),
    (0.0, 40, 1.0),
    (0.0, 1500, 1.0),
    (0.0, 0, 0.9),
    (0.0, 0, 1e-6),
    (0.0, 0, 0.9999),
    (0.02, 50, 0.8),
    (1e-9, 1024, 0.99),
)


@dataclass(frozen=True, slots=True)
class Case:
    """`spread` is the logits' standard deviation; `levels` above 0 rounds them to so few values that many tie."""

    vocab_size: int
    spread: float
    levels: int = 0
    seed: int = 0

    def inputs(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Tempered logits, min-p, top-k and top-p, one row per entry of FILTERS."""
        generator = torch.Generator().manual_seed(self.seed)
        logits = torch.randn(len(FILTERS), self.vocab_size, generator=generator) * self.spread
        if self.levels:
            logits = torch.round(logits / self.spread * self.levels) * self.spread
        scaled = logits - logits.amax(-1, keepdim=True)
        min_p, top_k, top_p = zip(*FILTERS, strict=True)
        return (
            scaled.to(device),
            torch.tensor(min_p, dtype=torch.float32, device=device),
            torch.tensor([k or self.vocab_size for k in top_k], dtype=torch.int64, device=device),
            torch.tensor(top_p, dtype=torch.float32, device=device),
        )


CASES: Final = (
    Case(1, 1.0),
    Case(7, 1.0),
    Case(50, 3.0),
    Case(1024, 1.0),
    Case(1025, 0.01),
    Case(5003, 3.0),
    Case(5003, 0.0, seed=1),
    Case(5003, 1.0, levels=2, seed=2),
    Case(5003, 40.0, seed=3),
    Case(20_000, 1.0, seed=5),
    Case(20_000, 1.0, levels=3, seed=6),
    Case(49_152, 2.5, seed=4),
)
