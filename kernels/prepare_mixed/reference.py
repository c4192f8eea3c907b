"""The specification in torch."""

import torch


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
) -> tuple[torch.Tensor, ...]:
    """See `pillion.kernels.prepare_mixed.prepare_mixed`."""
    slots, starts, num_tokens = rows.to(torch.int64)
    computed, known, room = num_computed[slots], num_known[slots], capacity[slots]
    runs = (num_tokens > 0) & ~finished[slots]
    decode = runs & (starts < 0) & (computed + 1 == known) & (computed < room)
    prefill = runs & (starts >= 0) & (starts + num_tokens <= room)
    live = decode | prefill
    first_positions = torch.where(starts < 0, computed, starts)
    ends = first_positions + num_tokens

    owners = token_rows.clamp_min(0).to(torch.int64)
    stored = (token_rows >= 0) & live[owners]
    indices = torch.arange(len(token_rows), device=rows.device)
    positions = (first_positions[owners] + indices - query_start_loc[owners]) * stored
    token_slots = slots[owners]
    block_ids = block_tables[token_slots, positions // block_size].to(torch.int64)
    slot_mapping = torch.where(stored, block_ids * block_size + positions % block_size, -1)
    return (
        token_table[token_slots, positions].to(torch.int64),
        positions,
        slot_mapping,
        slots,
        (ends * decode).to(torch.int32),
        (ends * prefill).to(torch.int32),
        live & (ends == known),
        num_tokens * live,
        (query_start_loc[1:].to(torch.int64) - 1).clamp_min(0),
    )
