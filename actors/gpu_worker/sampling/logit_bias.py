"""Logit bias: a number added to a token's logit."""

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.sampling.slot_table import SlotTable
from pillion.messages.sampling import MAX_LOGIT_BIAS, TokenSampling


class LogitBias:
    """Up to MAX_LOGIT_BIAS entries a slot; unused ones add 0 to token 0. 12 KB a slot."""

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        # [max_num_seqs, MAX_LOGIT_BIAS] int64 and float32
        self._token_ids = SlotTable(max_num_seqs, (MAX_LOGIT_BIAS,), np.int64, 0, device)
        self._biases = SlotTable(max_num_seqs, (MAX_LOGIT_BIAS,), np.float32, 0.0, device)
        self._count_np = np.zeros(max_num_seqs, np.int64)

    def add(self, slot: int, sampling: TokenSampling) -> None:
        """A sequence takes the slot, which was released before."""
        if not sampling.logit_bias:
            return
        self._token_ids.write(slot, list(sampling.logit_bias))
        self._biases.write(slot, list(sampling.logit_bias.values()))
        self._count_np[slot] = len(sampling.logit_bias)

    def release(self, slot: int) -> None:
        """The slot's next tenant starts without a bias."""
        if self._count_np[slot]:
            self._token_ids.clear(slot)
            self._biases.clear(slot)
            self._count_np[slot] = 0

    def is_used(self, slots_np: npt.NDArray[np.integer]) -> bool:
        """Whether any of these slots has a bias."""
        return bool(self._count_np[slots_np].any())

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and biases of all slots on the device, [max_num_seqs, MAX_LOGIT_BIAS] int64 and float32."""
        return self._token_ids.rows(), self._biases.rows()

    def apply(
        self, logits: torch.Tensor, slots: torch.Tensor, slots_np: npt.NDArray[np.integer]
    ) -> None:
        """Writes: logits [n, vocab]."""
        width = int(self._count_np[slots_np].max(initial=0))
        if width:
            token_ids = self._token_ids.rows()[slots, :width]
            logits.scatter_add_(1, token_ids, self._biases.rows()[slots, :width])
