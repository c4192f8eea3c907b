"""Case grid of the noise: shapes and the kinds of seeds and positions that hashes get wrong."""

from dataclasses import dataclass
from typing import Final

import torch


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs of one call. `shared_ids`: one row of token ids for all rows."""

    num_rows: int
    num_tokens: int
    shared_ids: bool
    first_seed: int
    seed_stride: int
    first_position: int

    def inputs(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Seeds [n], positions [n] and token ids [m] or [n, m]."""
        rows = torch.arange(self.num_rows, dtype=torch.int64)
        ids = torch.arange(self.num_tokens, dtype=torch.int32)
        if not self.shared_ids:
            ids = (ids[None, :] + 3 * rows[:, None].to(torch.int32)).contiguous()
        seeds = self.first_seed + rows * self.seed_stride
        return seeds.to(device), (self.first_position + rows).to(device), ids.to(device)


CASES: Final = (
    Case(0, 7, True, 0, 1, 0),
    Case(3, 0, True, 0, 1, 0),
    Case(1, 1, True, 0, 0, 0),
    Case(5, 1003, True, 0, 1, 0),
    Case(4, 257, False, -(2**63), 1, 2**20),
    Case(3, 129, False, 2**63 - 4, 1, 131071),
    Case(2, 151_936, True, 42, 0, 5),
)
