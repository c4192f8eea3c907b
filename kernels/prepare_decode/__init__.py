"""Inputs of decode rows, gathered from the state that the device owns."""

from typing import NamedTuple

import torch

from pillion.kernels.prepare_decode import reference


class DecodeRows(NamedTuple):
    """One token per row; a masked row has KV length 0 and is not stored."""

    # [num_rows] int64; the last known token
    input_ids: torch.Tensor
    # [num_rows] int64
    positions: torch.Tensor
    # [num_rows] int64; block_id * block_size + offset, -1 for masked rows
    slot_mapping: torch.Tensor
    # [num_rows] int32; KV length with this token
    seq_lens: torch.Tensor
    # [num_rows] bool; False: masked
    valid: torch.Tensor
    # [num_rows] int64; tokens of the row that are computed in this step
    advance: torch.Tensor
    # [num_rows, num_blocks] int32
    block_table: torch.Tensor


def prepare_decode(
    slots: torch.Tensor,
    token_table: torch.Tensor,
    num_computed: torch.Tensor,
    num_known: torch.Tensor,
    capacity: torch.Tensor,
    finished: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
    num_blocks: int,
) -> DecodeRows:
    """What the decode rows of these slots read; shapes depend on the number of rows alone.

    A row is masked unless its slot is unfinished, exactly one known token is not computed yet, and a
    block has room for that token.

    slots         [num_rows] int64
    token_table   [num_slots, max_model_len] int32; known tokens of each slot
    num_computed  [num_slots] int64; tokens in the KV cache
    num_known     [num_slots] int64; tokens in token_table
    capacity      [num_slots] int64; tokens for which the slot has blocks
    finished      [num_slots] bool
    block_tables  [num_slots, max_blocks] int32
    num_blocks    columns of these that the rows read, from the first on
    """
    if slots.is_cuda:
        from pillion.kernels.prepare_decode import triton_impl

        implementation = triton_impl.prepare_decode
    else:
        implementation = reference.prepare_decode
    return DecodeRows(
        *implementation(
            slots,
            token_table,
            num_computed,
            num_known,
            capacity,
            finished,
            block_tables,
            block_size,
            num_blocks,
        )
    )
