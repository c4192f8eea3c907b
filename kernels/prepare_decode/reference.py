"""The specification in torch, and the CPU path."""

import torch


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
) -> tuple[torch.Tensor, ...]:
    """See `pillion.kernels.prepare_decode.prepare_decode`."""
    computed = num_computed[slots]
    valid = (computed + 1 == num_known[slots]) & (computed < capacity[slots]) & ~finished[slots]
    # Masked rows read position 0, which every table has.
    positions = computed * valid
    input_ids = token_table[slots, positions].to(torch.int64)
    block_ids = block_tables[slots, positions // block_size].to(torch.int64)
    slot_mapping = block_ids * block_size + positions % block_size
    slot_mapping = torch.where(valid, slot_mapping, -1)
    seq_lens = ((computed + 1) * valid).to(torch.int32)
    block_table = block_tables[:, :num_blocks].index_select(0, slots)
    return input_ids, positions, slot_mapping, seq_lens, valid, valid.to(torch.int64), block_table
