"""The same penalties, for the few tokens alone that occurred."""

import numpy as np
import torch

from pillion.kernels.penalties import reference


def apply_penalties(
    logits: torch.Tensor,
    token_counts: torch.Tensor,
    slots: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> None:
    """See the public function."""
    packed = token_counts.numpy()[slots.numpy()]
    found = np.flatnonzero(packed != 0)
    rows_np, ids_np = np.divmod(found, packed.shape[-1])
    rows, ids = torch.from_numpy(rows_np), torch.from_numpy(ids_np)
    counts = torch.from_numpy((packed.reshape(-1)[found] & reference.MAX_COUNT).astype(np.float32))
    logits[rows, ids] = reference.penalized(
        logits[rows, ids], counts, repetition[rows], frequency[rows], presence[rows]
    )
