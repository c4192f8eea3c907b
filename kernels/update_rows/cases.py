"""The grid that every implementation is tested on."""

from dataclasses import dataclass
from typing import Final

import torch

_MAX_MODEL_LEN: Final = 12


@dataclass(frozen=True, slots=True)
class Inputs:
    """A case's tensors, in the order of the kernel's arguments."""

    slots: torch.Tensor
    token_ids: torch.Tensor
    valid: torch.Tensor
    failed: torch.Tensor
    token_table: torch.Tensor
    num_known: torch.Tensor
    max_total: torch.Tensor
    finished: torch.Tensor
    stop_ids: torch.Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """A random state table, in which tokens often stop, fail or fill a sequence."""

    num_rows: int
    num_slots: int
    num_stop_ids: int = 3

    def inputs(self, device: torch.device) -> Inputs:
        """Slots are distinct, but for padding with the last one, whose rows are masked."""
        generator = torch.Generator().manual_seed(self.num_rows)

        def integers(low: int, high: int, *shape: int) -> torch.Tensor:
            return torch.randint(low, high, shape, generator=generator)

        own = torch.randperm(self.num_slots - 1, generator=generator)[: self.num_rows]
        padding = own.new_full((self.num_rows - len(own),), self.num_slots - 1)
        slots = torch.cat([own, padding])
        valid = (integers(0, 4, self.num_rows) > 0) & (slots < self.num_slots - 1)
        finished = torch.ones(self.num_slots, dtype=torch.bool)
        finished[slots[valid]] = False
        num_known = integers(1, _MAX_MODEL_LEN, self.num_slots)
        # A masked row may be full.
        num_known[slots[~valid]] = _MAX_MODEL_LEN
        max_total = (num_known + integers(1, 4, self.num_slots)).clamp_max(_MAX_MODEL_LEN)
        tensors = (
            slots,
            integers(0, 9, self.num_rows).int(),
            valid,
            integers(0, 5, self.num_rows) == 0,
            integers(0, 9, self.num_slots, _MAX_MODEL_LEN).int(),
            num_known,
            max_total,
            finished,
            integers(-1, 9 * self.num_stop_ids, self.num_slots, self.num_stop_ids).int(),
        )
        return Inputs(*(tensor.to(device) for tensor in tensors))


CASES: Final = (
    Case(0, 3),
    Case(1, 2),
    Case(7, 20),
    Case(64, 65),
    Case(100, 70, 160),
    Case(257, 400, 1),
)
