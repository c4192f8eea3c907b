"""The specification in torch, and the CPU path."""

import torch


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
    """See `pillion.kernels.update_rows.update_rows`."""
    appended = valid & ~failed
    known = num_known[slots]
    # Rows without a token write to the scratch slot, so that no shape depends on their number.
    target = torch.where(appended, slots, token_table.shape[0] - 1)
    positions = known * appended
    token_table[target, positions] = token_ids.to(token_table.dtype)
    num_known[target] = known + 1

    stopped = (stop_ids[slots] == token_ids.unsqueeze(1)).any(1)
    full = known + 1 >= max_total[slots]
    finish = torch.where(stopped, 1, torch.where(full, 2, 0))
    finish = torch.where(failed, 3, finish) * valid
    ended = torch.where(valid, slots, token_table.shape[0] - 1)
    finished[ended] = (finish > 0) | ~valid
    return positions, finish.to(torch.uint8)
