"""Case grid of the penalties: neutral, each alone, all at their limits, tokens in prompt, output, both, neither."""

from dataclasses import dataclass
from typing import Final

import torch

# (repetition, frequency, presence) of the rows.
PENALTIES: Final = (
    (1.0, 0.0, 0.0),
    (1.3, 0.0, 0.0),
    (0.01, 0.0, 0.0),
    (100.0, 0.0, 0.0),
    (1.0, 2.0, 0.0),
    (1.0, 0.0, -2.0),
    (1.1, -0.5, 0.7),
)


@dataclass(frozen=True, slots=True)
class Case:
    """`seen`: share of the vocabulary that occurred."""

    vocab_size: int
    seen: float
    max_count: int = 5
    seed: int = 0

    def inputs(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """The public function's arguments, with more slots than rows and rows out of order."""
        generator = torch.Generator().manual_seed(self.seed)
        num_rows = len(PENALTIES)
        shape = (num_rows + 3, self.vocab_size)
        counts = torch.randint(0, self.max_count + 1, shape, generator=generator)
        packed = counts - 2**15 * (torch.rand(shape, generator=generator) < 0.5)
        packed *= torch.rand(shape, generator=generator) < self.seen
        logits = torch.randn(num_rows, self.vocab_size, generator=generator) * 4
        if self.vocab_size > 1:
            logits[:, 0] = -torch.inf
        slots = torch.randperm(num_rows + 3, generator=generator)[:num_rows]
        penalties = torch.tensor(PENALTIES, dtype=torch.float32, device=device)
        return (
            logits.to(device),
            packed.to(torch.int16).to(device),
            slots.to(device),
            *penalties.unbind(-1),
        )


CASES: Final = (
    Case(1, 1.0),
    Case(37, 0.0),
    Case(37, 1.0, max_count=2**15 - 1),
    Case(1003, 0.05),
    Case(49_152, 0.01),
)
