"""The grid that every implementation is tested on."""

from dataclasses import dataclass
from typing import Final

import torch

_VOCAB_SIZE: Final = 50
_MAX_POSITIONS: Final = 40


@dataclass(frozen=True, slots=True)
class Inputs:
    """A case's tensors, in the order of the kernel's arguments."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    embedding_table: torch.Tensor
    cos_sin_table: torch.Tensor
    dtype: torch.dtype
    gain: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Case:
    """Random tables; the first token and the last, and so with positions, are always among many."""

    num_tokens: int
    hidden_size: int
    num_angles: int  # of cosines, and as many of sines
    has_gain: bool = True
    table_dtype: torch.dtype | None = None  # None: as the stream

    def inputs(self, device: torch.device, dtype: torch.dtype) -> Inputs:
        """For a stream of this type."""
        generator = torch.Generator().manual_seed(self.num_tokens)

        def rows_of(num_rows: int) -> torch.Tensor:
            rows = torch.randint(num_rows, (self.num_tokens,), generator=generator)
            rows[:1], rows[1:2] = num_rows - 1, 0
            return rows.to(device)

        def randn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(device)

        # More columns than are read, as in a table that is a view.
        table = randn(_VOCAB_SIZE, self.hidden_size + 8).to(self.table_dtype or dtype)
        return Inputs(
            input_ids=rows_of(_VOCAB_SIZE),
            positions=rows_of(_MAX_POSITIONS),
            embedding_table=table[:, : self.hidden_size],
            cos_sin_table=randn(_MAX_POSITIONS, 2, self.num_angles),
            dtype=dtype,
            gain=randn(self.hidden_size).to(dtype) if self.has_gain else None,
        )


CASES: Final = (
    Case(0, 64, 16),
    Case(1, 64, 16),
    Case(3, 576, 32),
    Case(2, 7, 3, has_gain=False),
    Case(5, 2048, 64, has_gain=False),
    Case(130, 48, 4),
    Case(4, 96, 12, table_dtype=torch.float32),
    Case(4, 96, 12, has_gain=False, table_dtype=torch.float16),
)
