"""Inputs of decode rows and prefill chunks in one batch, gathered from the state that the device owns."""

from typing import NamedTuple

import torch

from pillion.kernels.prepare_mixed import reference


class MixedRows(NamedTuple):
    """A row that is masked, or padding, advances by nothing, samples nothing and is not stored."""

    # [num_tokens] int64 each; slot_mapping is block_id * block_size + offset, -1: do not write
    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    # [num_rows] int64
    slots: torch.Tensor
    # [num_rows] int32 each; KV length with this step's tokens of decode and of prefill rows, 0 for all others
    decode_lens: torch.Tensor
    prefill_lens: torch.Tensor
    # [num_rows] bool; whether the row's next token is sampled: no token of it stays behind
    valid: torch.Tensor
    # [num_rows] int64; tokens of the row that are computed in this step
    advance: torch.Tensor
    # [num_rows] int64; index in input_ids of the row's last token
    last_tokens: torch.Tensor


def prepare_mixed(
    rows: torch.Tensor,
    query_start_loc: torch.Tensor,
    token_rows: torch.Tensor,
    token_table: torch.Tensor,
    num_computed: torch.Tensor,
    num_known: torch.Tensor,
    capacity: torch.Tensor,
    finished: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
) -> MixedRows:
    """What these rows read; shapes depend on the numbers of rows and tokens alone.

    A decode row is masked under the conditions of `prepare_decode`, a prefill row if its slot is finished
    or has no room for its tokens.

    rows             [3, num_rows] int32; slot, first position (-1: a decode row), tokens (0: padding)
    query_start_loc  [num_rows + 1] int32; first token of each row
    token_rows       [num_tokens] int32; the row of each token, -1: padding
    The tables are those of `prepare_decode`.
    """
    if rows.is_cuda:
        from pillion.kernels.prepare_mixed import triton_impl

        implementation = triton_impl.prepare_mixed
    else:
        implementation = reference.prepare_mixed
    return MixedRows(
        *implementation(
            rows,
            query_start_loc,
            token_rows,
            token_table,
            num_computed,
            num_known,
            capacity,
            finished,
            block_tables,
            block_size,
        )
    )
