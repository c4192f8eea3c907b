"""The grid that every implementation is tested on."""

from dataclasses import dataclass
from typing import Final

import torch

_MAX_MODEL_LEN: Final = 40


@dataclass(frozen=True, slots=True)
class Inputs:
    """A case's tensors, in the order of the kernel's arguments."""

    slots: torch.Tensor
    token_table: torch.Tensor
    num_computed: torch.Tensor
    num_known: torch.Tensor
    capacity: torch.Tensor
    finished: torch.Tensor
    block_tables: torch.Tensor
    block_size: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Case:
    """A random state table; half of its slots could decode."""

    num_rows: int
    num_slots: int
    block_size: int = 8
    num_blocks: int = 3  # of each row's that are read
    max_blocks: int | None = None  # None: as the tokens need

    def inputs(self, device: torch.device) -> Inputs:
        """Slots are distinct, but for padding with the last one, which is finished."""
        generator = torch.Generator().manual_seed(self.num_rows)

        def integers(low: int, high: int, *shape: int) -> torch.Tensor:
            return torch.randint(low, high, shape, generator=generator)

        slots = torch.randperm(self.num_slots - 1, generator=generator)[: self.num_rows]
        padding = slots.new_full((self.num_rows - len(slots),), self.num_slots - 1)
        num_computed = integers(0, _MAX_MODEL_LEN, self.num_slots)
        num_known = num_computed + (integers(0, 5, self.num_slots) > 0).long()
        max_blocks = self.max_blocks or -(-_MAX_MODEL_LEN // self.block_size)
        capacity = num_computed + integers(-1, 4, self.num_slots)
        finished = integers(0, 5, self.num_slots) == 0
        finished[-1] = True
        return Inputs(
            slots=torch.cat([slots, padding]).to(device),
            token_table=integers(0, 50000, self.num_slots, _MAX_MODEL_LEN).int().to(device),
            num_computed=num_computed.to(device),
            num_known=num_known.to(device),
            capacity=capacity.to(device),
            finished=finished.to(device),
            block_tables=integers(0, 1000, self.num_slots, max_blocks).int().to(device),
            block_size=self.block_size,
            num_blocks=self.num_blocks,
        )


CASES: Final = (
    Case(0, 3),
    Case(1, 2),
    Case(7, 20),
    Case(9, 20, num_blocks=0),
    Case(5, 20, num_blocks=2100, max_blocks=2200),
    Case(64, 65),
    Case(100, 70, 16),
    Case(257, 400),
)
