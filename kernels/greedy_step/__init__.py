"""The end of a greedy decode step in two launches: the best tokens, and everything that follows from them."""

import torch

from pillion.kernels.greedy_step import reference


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
    """Takes each row's best token (the lowest id among equals) and updates its slot.

    As `update_rows` with failed = the row's largest logit is not finite; besides, num_computed of each row's
    slot advances.

    logits   [n, vocab] float32, dense rows
    valid    [n] bool; False: nothing is sampled for this row
    advance  [n] int64; 0 for masked rows
    columns  [4, n] int32: token, position, finish code, whether the row counts
    The tables are those of `update_rows`; num_computed [num_slots] int64.

    Writes: columns, token_table, num_computed, num_known, finished.
    """
    if logits.is_cuda:
        from pillion.kernels.greedy_step import triton_impl

        implementation = triton_impl.greedy_step
    else:
        implementation = reference.greedy_step
    implementation(
        logits,
        slots,
        valid,
        advance,
        token_table,
        num_computed,
        num_known,
        max_total,
        finished,
        stop_ids,
        columns,
    )
