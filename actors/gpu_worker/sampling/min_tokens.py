"""min_tokens: no stop id before that many output tokens."""

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.sampling.slot_table import SlotTable
from pillion.messages.sampling import MAX_END_TOKEN_IDS, TokenSampling


class MinTokens:
    """The ids that end a sequence, banned at every position before the first where it may end."""

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        # [max_num_seqs, MAX_END_TOKEN_IDS] int64; filled up with -1
        self._stop_ids = SlotTable(max_num_seqs, (MAX_END_TOKEN_IDS,), np.int64, -1, device)
        # [max_num_seqs] int64; position in the sequence from which it may end
        self._first_end = SlotTable(max_num_seqs, (), np.int64, 0, device)
        self._count_np = np.zeros(max_num_seqs, np.int64)

    def add(self, slot: int, sampling: TokenSampling, num_prompt_tokens: int) -> None:
        """A sequence takes the slot, which was released before."""
        if not (sampling.min_tokens and sampling.stop_token_ids):
            return
        self._stop_ids.write(slot, sampling.stop_token_ids)
        self._first_end.write(slot, num_prompt_tokens + sampling.min_tokens)
        self._count_np[slot] = len(sampling.stop_token_ids)

    def release(self, slot: int) -> None:
        """The slot's next tenant may end at once."""
        if self._count_np[slot]:
            self._stop_ids.clear(slot)
            self._first_end.clear(slot)
            self._count_np[slot] = 0

    def is_used(self, slots_np: npt.NDArray[np.integer]) -> bool:
        """Whether any of these slots has stop ids that come too early for it."""
        return bool(self._count_np[slots_np].any())

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Stop ids of all slots on the device, [max_num_seqs, MAX_END_TOKEN_IDS], and from where they may end."""
        return self._stop_ids.rows(), self._first_end.rows()

    def bans(
        self, slots: torch.Tensor, slots_np: npt.NDArray[np.integer], positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Token ids [n, w] and which of them are banned, [n, w] bool; None if no row has any."""
        width = int(self._count_np[slots_np].max(initial=0))
        if not width:
            return None
        stop_ids = self._stop_ids.rows()[slots, :width]
        may_not_end = positions < self._first_end.rows()[slots]
        return stop_ids.clamp_min(0), (stop_ids >= 0) & may_not_end[:, None]
