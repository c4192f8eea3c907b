"""The grid that every implementation is tested on."""

from dataclasses import dataclass
from typing import Final

import torch

from pillion.kernels.prepare_decode import cases as decode_cases


@dataclass(frozen=True, slots=True)
class Inputs:
    """A case's tensors, in the order of the kernel's arguments."""

    rows: torch.Tensor
    query_start_loc: torch.Tensor
    token_rows: torch.Tensor
    token_table: torch.Tensor
    num_computed: torch.Tensor
    num_known: torch.Tensor
    capacity: torch.Tensor
    finished: torch.Tensor
    block_tables: torch.Tensor
    block_size: int


@dataclass(frozen=True, slots=True)
class Case:
    """Decode rows, prefill rows and padding; every other prefill row ends at what is known."""

    num_decode: int
    num_prefill: int
    num_padding: int = 0
    num_padding_tokens: int = 0

    def inputs(self, device: torch.device) -> Inputs:
        """Over a random state table."""
        num_rows = self.num_decode + self.num_prefill
        state = decode_cases.Case(num_rows, num_rows + 5).inputs(torch.device("cpu"))
        generator = torch.Generator().manual_seed(num_rows)
        rows, computed, known = [], state.num_computed, state.num_known
        for number, slot in enumerate(state.slots.tolist()):
            if number < self.num_decode:
                rows.append((slot, -1, 1))
                continue
            start = int(torch.randint(0, 20, (), generator=generator))
            length = int(torch.randint(1, 15, (), generator=generator))
            computed[slot], known[slot] = start, start + length + number % 2
            state.capacity[slot] = known[slot] + int(number % 5 != 0) - 1
            rows.append((slot, start, length))
        rows += [(len(state.finished) - 1, -1, 0)] * self.num_padding
        table = torch.tensor(rows, dtype=torch.int32).view(-1, 3).T.contiguous()
        starts = torch.cat([torch.zeros(1, dtype=torch.int32), table[2].cumsum(0)]).int()
        owners = torch.repeat_interleave(torch.arange(len(rows)), table[2].long()).int()
        padding = owners.new_full((self.num_padding_tokens,), -1)
        return Inputs(
            rows=table.to(device),
            query_start_loc=starts.to(device),
            token_rows=torch.cat([owners, padding]).to(device),
            token_table=state.token_table.to(device),
            num_computed=computed.to(device),
            num_known=known.to(device),
            capacity=state.capacity.to(device),
            finished=state.finished.to(device),
            block_tables=state.block_tables.to(device),
            block_size=state.block_size,
        )


CASES: Final = (
    Case(1, 0),
    Case(0, 1),
    Case(3, 2, 4, 9),
    Case(40, 17, 0, 3),
    Case(150, 30, 76, 200),
)
