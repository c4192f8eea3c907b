"""The specification in torch."""

import torch

from pillion.kernels.update_rows import reference as update_rows


def greedy_step(
    logits: torch.Tensor,
    slots: torch.Tensor,
    valid: torch.Tensor,
    advance: torch.Tensor,
    token_table: torch.Tensor,
    num_computed: torch.Tensor,
    num_known: torch.Tensor,
    max_total: torch.Tensor,
    finished: torch.Tensor,
    stop_ids: torch.Tensor,
    columns: torch.Tensor,
) -> None:
    """See `pillion.kernels.greedy_step.greedy_step`."""
    num_computed.index_add_(0, slots, advance)
    failed = ~logits.amax(-1).isfinite()
    token_ids = logits.argmax(-1).to(torch.int32)
    positions, finish = update_rows.update_rows(
        slots, token_ids, valid, failed, token_table, num_known, max_total, finished, stop_ids
    )
    for column, values in zip(columns, (token_ids, positions, finish, valid), strict=True):
        column.copy_(values)
