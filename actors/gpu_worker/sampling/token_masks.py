"""Token masks: which tokens a grammar lets through, told anew for every position."""

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.sampling.slot_table import SlotTable, upload
from pillion.kernels.token_bitmask import apply_token_bitmask
from pillion.messages.sampling import TokenSampling
from pillion.messages.steps import TokenMasks
from pillion.runtime.errors import InvariantBroken

_WORD_BITS = 32
_NOWHERE = -1


class TokenMaskTable:
    """The newest mask of each slot, and for which tenant and position it is.

    A mask that comes before its tenant waits in the slot: nothing of the present tenant is lost by that,
    for the scheduler has taken the slot from it.
    """

    def __init__(self, vocab_size: int, max_num_seqs: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        num_words = -(-vocab_size // _WORD_BITS)
        # [max_num_seqs, num_words] int32
        self._bitmask = SlotTable(max_num_seqs, (num_words,), np.int32, -1, device)
        self._needs_np = np.zeros(max_num_seqs, np.bool_)
        self._needing: set[int] = set()  # the slots of which that is true
        # of the tenant, and of the mask that is there
        self._tenant_np = np.full(max_num_seqs, _NOWHERE, np.int64)
        self._generation_np = np.full(max_num_seqs, _NOWHERE, np.int64)
        self._position_np = np.full(max_num_seqs, _NOWHERE, np.int64)

    @property
    def is_used(self) -> bool:
        """Whether any slot needs masks."""
        return bool(self._needing)

    def add(self, slot: int, sampling: TokenSampling, generation: int) -> None:
        """A sequence takes the slot, which was released before."""
        self._tenant_np[slot] = generation
        if sampling.needs_masks:
            self._needs_np[slot] = True
            self._needing.add(slot)

    def release(self, slot: int) -> None:
        """The slot's next tenant may need nothing."""
        if slot in self._needing:
            self._needs_np[slot] = False
            self._needing.remove(slot)

    def forget_all(self) -> None:
        """Generations count from the beginning again."""
        self._needs_np[:] = False
        self._needing.clear()
        for column in (self._tenant_np, self._generation_np, self._position_np):
            column[:] = _NOWHERE

    def take(self, message: TokenMasks) -> None:
        """Keeps the masks that are not of tenants who are gone. Raises InvariantBroken for a wrong size."""
        slots = np.frombuffer(message.slots, dtype=np.int32)
        generations = np.frombuffer(message.generations, dtype=np.int32)
        positions = np.frombuffer(message.positions, dtype=np.int32)
        num_slots, num_words = self._bitmask.host_np.shape
        masks = np.frombuffer(message.masks, dtype=np.int32)
        if len(masks) != len(slots) * num_words or (len(slots) and slots.max() >= num_slots):
            raise InvariantBroken(
                f"masks of {len(masks)} words for slots {slots.tolist()};"
                f" {num_words} words make one, and there are {num_slots} slots"
            )
        for slot, generation, position, mask in zip(
            slots.tolist(),
            generations.tolist(),
            positions.tolist(),
            masks.reshape(len(slots), num_words),
            strict=True,
        ):
            if generation >= max(self._tenant_np[slot], self._generation_np[slot]):
                self._bitmask.write(slot, mask)
                self._generation_np[slot] = generation
                self._position_np[slot] = position

    def missing(
        self, slots_np: npt.NDArray[np.integer], positions_np: npt.NDArray[np.integer]
    ) -> npt.NDArray[np.bool_]:
        """[n] whether a slot needs a mask for the token at this position and has none."""
        needs: npt.NDArray[np.bool_] = self._needs_np[slots_np]
        if not needs.any():
            return needs
        is_own = self._generation_np[slots_np] == self._tenant_np[slots_np]
        missing: npt.NDArray[np.bool_] = needs & ~(
            is_own & (self._position_np[slots_np] == positions_np)
        )
        return missing

    def rows(self) -> torch.Tensor:
        """The newest masks of all slots on the device, [max_num_seqs, num_words] int32."""
        return self._bitmask.rows()

    def apply(
        self, logits: torch.Tensor, slots: torch.Tensor, slots_np: npt.NDArray[np.integer]
    ) -> None:
        """Writes: logits [n, vocab or wider], -inf for what is not allowed; the rest is left as it is."""
        if not self._needing:
            return
        rows_np = np.flatnonzero(self._needs_np[slots_np])
        if len(rows_np):
            rows = upload(rows_np, logits.device)
            logits = logits[:, : self._vocab_size]
            apply_token_bitmask(logits, self._bitmask.rows(), rows, slots[rows])
