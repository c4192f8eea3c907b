"""The grid that every implementation is tested on."""

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from pillion.kernels.update_rows.cases import Case as Rows

_ROWS: Final = Rows(num_rows=9, num_slots=12)


class Inputs(NamedTuple):
    """The arguments of `greedy_step`."""

    logits: torch.Tensor
    slots: torch.Tensor
    valid: torch.Tensor
    advance: torch.Tensor
    token_table: torch.Tensor
    num_computed: torch.Tensor
    num_known: torch.Tensor
    max_total: torch.Tensor
    finished: torch.Tensor
    stop_ids: torch.Tensor
    columns: torch.Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """Rows as those of `update_rows`; among three or more one has equal best tokens, and two are not finite."""

    vocab_size: int
    rows: Rows = _ROWS

    def inputs(self, device: torch.device) -> Inputs:
        """Nothing is in `columns` but -7."""
        num_rows, vocab = self.rows.num_rows, self.vocab_size
        logits = torch.randn(
            num_rows, vocab, generator=torch.Generator().manual_seed(vocab + num_rows)
        )
        if num_rows > 2:
            logits[0, vocab // 2] = logits[0, vocab - 1] = 40.0
            logits[1, 3] = float("nan")
            logits[2, 4] = float("inf")
        rows = self.rows.inputs(device)
        return Inputs(
            logits.to(device),
            rows.slots,
            rows.valid,
            rows.valid.long() * torch.arange(1, num_rows + 1, device=device),
            rows.token_table,
            rows.num_known - 1,
            rows.num_known,
            rows.max_total,
            rows.finished,
            rows.stop_ids,
            torch.full((4, num_rows), -7, dtype=torch.int32, device=device),
        )


CASES: Final = (
    Case(17),
    Case(5000),
    Case(12288),
    Case(300, Rows(num_rows=0, num_slots=3)),
    Case(128_256, Rows(num_rows=1, num_slots=2)),
    Case(97, Rows(num_rows=100, num_slots=70, num_stop_ids=160)),
)
