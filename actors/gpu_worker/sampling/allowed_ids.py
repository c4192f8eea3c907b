"""Allowed token ids: everything else is out of reach."""

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.sampling.slot_table import SlotTable, upload
from pillion.kernels.token_bitmask import apply_token_bitmask
from pillion.messages.sampling import TokenSampling

_WORD_BITS = 32


class AllowedIds:
    """One bit per slot and token: ceil(vocab / 32) * 4 bytes a slot, 6 KB for 49,152 tokens."""

    def __init__(self, vocab_size: int, max_num_seqs: int, device: torch.device) -> None:
        num_words = -(-vocab_size // _WORD_BITS)
        # [max_num_seqs, num_words] int32; all ones where everything is allowed
        self._bitmask = SlotTable(max_num_seqs, (num_words,), np.int32, -1, device)
        self._is_used_np = np.zeros(max_num_seqs, np.bool_)

    def add(self, slot: int, sampling: TokenSampling) -> None:
        """A sequence takes the slot, which was released before."""
        if not sampling.allowed_token_ids:
            return
        bits = np.zeros(self._bitmask.host_np.shape[1] * _WORD_BITS, np.uint8)
        bits[sampling.allowed_token_ids] = 1
        self._bitmask.write(slot, np.packbits(bits, bitorder="little").view(np.int32))
        self._is_used_np[slot] = True

    def release(self, slot: int) -> None:
        """The slot's next tenant starts without a restriction."""
        if self._is_used_np[slot]:
            self._bitmask.clear(slot)
            self._is_used_np[slot] = False

    def is_used(self, slots_np: npt.NDArray[np.integer]) -> bool:
        """Whether any of these slots restricts its ids."""
        return bool(self._is_used_np[slots_np].any())

    def rows(self) -> torch.Tensor:
        """The bits of all slots on the device, [max_num_seqs, num_words] int32."""
        return self._bitmask.rows()

    def apply(
        self, logits: torch.Tensor, slots: torch.Tensor, slots_np: npt.NDArray[np.integer]
    ) -> None:
        """Writes: logits [n, vocab], -inf for what is not allowed."""
        rows_np = np.flatnonzero(self._is_used_np[slots_np])
        if len(rows_np):
            rows = upload(rows_np, logits.device)
            apply_token_bitmask(logits, self._bitmask.rows(), rows, slots[rows])
