"""Case grid of sampling: greedy and sampled rows mixed, with and without filters, over several vocabularies."""

from dataclasses import dataclass
from typing import Final

import torch

# (temperature, min_p, top_k, top_p) of the rows; top-k 0 stands for off.
ROWS: Final = (
    (0.0, 0.0, 0, 1.0),
    (1.0, 0.0, 0, 1.0),
    (0.7, 0.0, 0, 0.9),
    (1.0, 0.05, 0, 1.0),
    (9e-6, 0.0, 0, 1.0),
    (2e-5, 0.0, 0, 1.0),
    (100.0, 0.0, 0, 1.0),
    (100.0, 0.0, 0, 0.95),
    (1.3, 0.01, 40, 0.8),
    (1.0, 0.0, 1, 1.0),
    (1.0, 0.0, 0, 1e-9),
    (0.5, 1.0, 0, 1.0),
    (0.0, 0.3, 5, 0.5),
    (1.0, 0.0, 2000, 1.0),
)


@dataclass(frozen=True, slots=True)
class Case:
    """`spread` is the logits' standard deviation, `masked` the share that is -inf."""

    vocab_size: int
    spread: float
    levels: int = 0
    masked: float = 0.0
    seed: int = 0

    def inputs(self, device: torch.device) -> dict[str, torch.Tensor]:
        """The public function's tensor arguments by name, one row per entry of ROWS."""
        generator = torch.Generator().manual_seed(self.seed)
        num_rows = len(ROWS)
        logits = torch.randn(num_rows, self.vocab_size, generator=generator) * self.spread + 3.0
        if self.levels:
            logits = torch.round(logits / self.spread * self.levels) * self.spread
        is_masked = torch.rand(logits.shape, generator=generator) < self.masked
        is_masked[:, self.vocab_size // 2] = False
        logits.masked_fill_(is_masked, -torch.inf)
        temperature, min_p, top_k, top_p = zip(*ROWS, strict=True)
        seeds = torch.randint(-(2**62), 2**62, (num_rows,), generator=generator)
        positions = torch.randint(0, 2**17, (num_rows,), generator=generator)
        tensors = {
            "logits": logits,
            "temperature": torch.tensor(temperature, dtype=torch.float32),
            "min_p": torch.tensor(min_p, dtype=torch.float32),
            "top_k": torch.tensor([k or self.vocab_size for k in top_k], dtype=torch.int64),
            "top_p": torch.tensor(top_p, dtype=torch.float32),
            "seeds": seeds,
            "positions": positions,
        }
        return {name: tensor.to(device) for name, tensor in tensors.items()}


CASES: Final = (
    Case(1, 1.0),
    Case(2, 1.0, seed=1),
    Case(130, 3.0, seed=2),
    Case(1003, 2.0, levels=1, seed=3),
    Case(1003, 0.0, seed=4),
    Case(5003, 4.0, masked=0.99, seed=5),
    Case(5003, 1e30, seed=6),
    Case(49_152, 2.5, seed=7),
    Case(151_936, 3.0, seed=8),
)
