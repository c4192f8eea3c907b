"""The grid that every implementation is tested on."""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from pillion.kernels.edit_logits import Edited
from pillion.kernels.penalties import MAX_COUNT
from pillion.kernels.sampled_step.reference import Edits, SlotTables
from pillion.kernels.update_rows.cases import Case as Rows

# As small as the ids of `update_rows`' cases.
_VOCAB_SIZE: Final = 9
_ROWS: Final = Rows(num_rows=40, num_slots=43)


class Inputs(NamedTuple):
    """The arguments of an implementation."""

    token_ids: torch.Tensor
    best: torch.Tensor
    slots: torch.Tensor
    valid: torch.Tensor
    advance: torch.Tensor
    tables: SlotTables
    columns: torch.Tensor
    edits: Edits | None


@dataclass(frozen=True, slots=True)
class Case:
    """Rows as those of `update_rows`; best logits and logits before edits are not finite here and there."""

    has_edits: bool
    rows: Rows = _ROWS
    num_pieces: int = 3
    num_recent: int = 5

    def inputs(self, device: torch.device) -> Inputs:
        """Nothing is in `columns` but -7; some counts are full."""
        generator = torch.Generator().manual_seed(2)
        rows, num_rows = self.rows.inputs(device), self.rows.num_rows
        best = torch.randn(num_rows, generator=generator)
        best[::7], best[1:2], best[2:3] = -math.inf, math.nan, math.inf
        return Inputs(
            rows.token_ids,
            best.to(device),
            rows.slots,
            rows.valid,
            rows.valid.long() * torch.arange(1, num_rows + 1, device=device),
            SlotTables(
                rows.token_table,
                rows.num_known - 1,
                rows.num_known,
                rows.max_total,
                rows.finished,
                rows.stop_ids,
            ),
            torch.full((4, num_rows), -7, dtype=torch.int32, device=device),
            self._edits(rows.valid, generator) if self.has_edits else None,
        )

    def _edits(self, valid: torch.Tensor, generator: torch.Generator) -> Edits:
        num_rows, num_slots = self.rows.num_rows, self.rows.num_slots
        pieces = num_rows, self.num_pieces

        def integers(low: int, high: int, *shape: int) -> torch.Tensor:
            return torch.randint(low, high, shape, generator=generator).int()

        features = integers(0, 64, num_rows)
        before = torch.where(torch.rand(pieces, generator=generator) < 0.05, math.nan, 1.0)
        banned = torch.randn(pieces, generator=generator)
        banned[: num_rows // 2] = -math.inf
        banned_ids = integers(0, _VOCAB_SIZE, *pieces)
        counts = integers(-(2**15), 2**15, num_slots, _VOCAB_SIZE).to(torch.int16)
        counts[:, 4:] |= MAX_COUNT
        recent = integers(0, _VOCAB_SIZE, num_slots, self.num_recent)
        edited = Edited(*(each.to(valid.device) for each in (before, banned, banned_ids)))
        tables = counts.to(valid.device), recent.to(valid.device)
        return Edits(features.to(valid.device) * valid, edited, *tables)


CASES: Final = (
    Case(False),
    Case(True),
    Case(True, Rows(num_rows=0, num_slots=3)),
    Case(True, Rows(num_rows=1, num_slots=2), num_pieces=1, num_recent=1),
    Case(False, Rows(num_rows=100, num_slots=70, num_stop_ids=160)),
    Case(True, Rows(num_rows=257, num_slots=400, num_stop_ids=1), num_pieces=33, num_recent=8),
)
