"""Presence, frequency and repetition penalties, and the counts of tokens that they need."""

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.sampling.slot_table import SlotTable, upload
from pillion.kernels.penalties import IN_PROMPT, MAX_COUNT, apply_penalties
from pillion.messages.sampling import TokenSampling


class Penalties:
    """Presence and frequency count output tokens; repetition looks at prompt and output.

    The counts take 2 bytes for each slot and token (6 MB for 64 slots of 49,152 tokens, 311 MB for 1,024
    of 151,936). They are allocated at the first use, or at once with `preallocate`, and never move.
    """

    def __init__(
        self, vocab_size: int, max_num_seqs: int, device: torch.device, preallocate: bool
    ) -> None:
        self._device = device
        # One row more, which takes the counts of masked rows.
        self._counts_shape = (max_num_seqs + 1, vocab_size)
        # [max_num_seqs + 1, vocab] int16, packed as kernels.penalties says
        self._counts: torch.Tensor | None = None
        if preallocate:
            self._counts = self._allocate()
        # [max_num_seqs, 3] float32; repetition, frequency, presence
        self._strengths = SlotTable(max_num_seqs, (3,), np.float32, (1.0, 0.0, 0.0), device)
        self._is_used_np = np.zeros(max_num_seqs, np.bool_)

    def add(
        self,
        slot: int,
        sampling: TokenSampling,
        token_ids: npt.NDArray[np.int32],
        num_prompt_tokens: int,
    ) -> None:
        """A sequence takes the slot, which was released before."""
        if not sampling.uses_penalties:
            return
        if self._counts is None:
            self._counts = self._allocate()
        counts = np.bincount(token_ids[num_prompt_tokens:], minlength=self._counts_shape[1])
        packed = np.minimum(counts, MAX_COUNT).astype(np.int16)
        packed[token_ids[:num_prompt_tokens]] |= IN_PROMPT
        self._counts[slot] = upload(packed, self._device)
        self._strengths.write(
            slot,
            (
                sampling.repetition_penalty,
                sampling.frequency_penalty,
                sampling.presence_penalty,
            ),
        )
        self._is_used_np[slot] = True

    def release(self, slot: int) -> None:
        """The slot's next tenant starts without penalties; its counts are written if it needs them."""
        if self._is_used_np[slot]:
            self._strengths.clear(slot)
            self._is_used_np[slot] = False

    def is_used(self, slots_np: npt.NDArray[np.integer]) -> bool:
        """Whether any of these slots has penalties."""
        return bool(self._is_used_np[slots_np].any())

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Counts [max_num_seqs + 1, vocab] int16 and strengths [max_num_seqs, 3] float32 of all slots on the device."""
        if self._counts is None:
            self._counts = self._allocate()
        return self._counts, self._strengths.rows()

    def apply(
        self, logits: torch.Tensor, slots: torch.Tensor, slots_np: npt.NDArray[np.integer]
    ) -> None:
        """Writes: logits [n, vocab]."""
        is_used = self._is_used_np[slots_np]
        if self._counts is None or not is_used.any():
            return
        strengths = self._strengths.rows()
        if logits.device.type != "cpu" or is_used.all():
            apply_penalties(logits, self._counts, slots, *strengths[slots].unbind(-1))
            return
        rows = upload(np.flatnonzero(is_used), logits.device)
        penalized, its_slots = logits[rows], slots[rows]
        apply_penalties(penalized, self._counts, its_slots, *strengths[its_slots].unbind(-1))
        logits[rows] = penalized

    def observe(self, slots: torch.Tensor, token_ids: torch.Tensor, valid: torch.Tensor) -> None:
        """Counts one output token for each valid row, up to MAX_COUNT."""
        if self._counts is None or not self._is_used_np.any():
            return
        place = (torch.where(valid, slots, self._counts_shape[0] - 1), token_ids.to(torch.int64))
        counted = self._counts[place]
        is_full = (counted & MAX_COUNT) == MAX_COUNT
        self._counts[place] = torch.where(is_full, counted, counted + 1)

    def _allocate(self) -> torch.Tensor:
        return torch.zeros(self._counts_shape, dtype=torch.int16, device=self._device)
