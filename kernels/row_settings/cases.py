"""Case grid of the settings: no rows, padded rows, more than a program takes."""

from dataclasses import dataclass
from typing import Final

import torch


@dataclass(frozen=True, slots=True)
class Case:
    """Slots in any order; some rows are masked."""

    num_rows: int
    num_slots: int

    def inputs(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """The arguments of `row_settings`."""
        generator = torch.Generator().manual_seed(self.num_rows)

        def integers(low: int, high: int, *shape: int) -> torch.Tensor:
            return torch.randint(low, high, shape, generator=generator)

        tensors = (
            integers(0, self.num_slots, self.num_rows),
            integers(0, 4, self.num_rows) > 0,
            integers(0, 2**17, self.num_slots),
            torch.rand(self.num_slots, 3, generator=generator),
            integers(-(2**62), 2**62, self.num_slots, 2),
            integers(-1, 64, self.num_slots, 2).int(),
        )
        return tuple(tensor.to(device) for tensor in tensors)


CASES: Final = (Case(0, 1), Case(1, 1), Case(7, 20), Case(300, 257))
