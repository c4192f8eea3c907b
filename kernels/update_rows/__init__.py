"""The end of a step on the device: store sampled tokens, advance counters, decide who has finished."""

import torch

from pillion.kernels.update_rows import reference

# What the finish column says of a row; the values are part of the wire format (messages/ids.py).
GOES_ON, STOPPED, LENGTH_REACHED, FAILED = 0, 1, 2, 3


def update_rows(
    slots: torch.Tensor,
    token_ids: torch.Tensor,
    valid: torch.Tensor,
    failed: torch.Tensor,
    token_table: torch.Tensor,
    num_known: torch.Tensor,
    max_total: torch.Tensor,
    finished: torch.Tensor,
    stop_ids: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Appends each row's token to its slot; returns (positions, finish) of the rows.

    A valid row that failed ends with FAILED and gets no token. Else its token is stored behind the
    known ones; the row ends with STOPPED if the token is one of its stop ids, with LENGTH_REACHED if
    max_total tokens are known now. Masked rows change nothing and have finish GOES_ON.

    slots        [num_rows] int64; valid rows name distinct slots. The last slot of the tables is scratch.
    token_ids    [num_rows] int32
    valid        [num_rows] bool
    failed       [num_rows] bool
    token_table  [num_slots, max_model_len] int32
    num_known    [num_slots] int64
    max_total    [num_slots] int64; at most max_model_len
    finished     [num_slots] bool
    stop_ids     [num_slots, max_stop_ids] int32; -1 fills
    returns      [num_rows] int64, where the token was stored; [num_rows] uint8

    Writes: token_table, num_known, finished.
    """
    if slots.is_cuda:
        from pillion.kernels.update_rows import triton_impl

        implementation = triton_impl.update_rows
    else:
        implementation = reference.update_rows
    return implementation(
        slots,
        token_ids,
        valid,
        failed,
        token_table,
        num_known,
        max_total,
        finished,
        stop_ids,
    )
