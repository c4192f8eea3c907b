"""Bad words: token sequences of which the last token may not follow the others."""

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.sampling.slot_table import SlotTable, upload
from pillion.kernels.edit_logits import ANY_TOKEN, NO_WORD
from pillion.messages.sampling import (
    MAX_BAD_WORD_SEQUENCES,
    MAX_BAD_WORD_TOKENS,
    TokenSampling,
)

_NOTHING: Final = -1  # in the recent tokens: before the first output token


class BadWords:
    """Compares the last output tokens with each word's beginning; as in vLLM, the prompt doesn't count.

    A word's beginning stands right-aligned, so that one comparison serves all lengths. 64 KB a slot for
    the words, allocated at the first use, or at once with `preallocate`.
    """

    def __init__(self, max_num_seqs: int, device: torch.device, preallocate: bool) -> None:
        self._max_num_seqs = max_num_seqs
        self._device = device
        # [max_num_seqs, MAX_BAD_WORD_SEQUENCES, MAX_BAD_WORD_TOKENS] int32; last column: the banned token
        self._words: SlotTable | None = self._allocate() if preallocate else None
        # [max_num_seqs + 1, MAX_BAD_WORD_TOKENS - 1] int32; the last output tokens, the newest at the
        # end; one row more, which takes the tokens of masked rows
        self._recent = torch.full(
            (max_num_seqs + 1, MAX_BAD_WORD_TOKENS - 1), _NOTHING, dtype=torch.int32, device=device
        )
        self._count_np = np.zeros(max_num_seqs, np.int64)
        self._longest_np = np.zeros(max_num_seqs, np.int64)

    def add(
        self,
        slot: int,
        sampling: TokenSampling,
        token_ids: npt.NDArray[np.int32],
        num_prompt_tokens: int,
    ) -> None:
        """A sequence takes the slot, which was released before."""
        if not sampling.bad_words:
            return
        if self._words is None:
            self._words = self._allocate()
        words = np.full((len(sampling.bad_words), MAX_BAD_WORD_TOKENS), ANY_TOKEN, np.int32)
        for word, tokens in zip(words, sampling.bad_words, strict=True):
            word[MAX_BAD_WORD_TOKENS - len(tokens) :] = tokens
        self._words.write(slot, words)
        recent = np.full(MAX_BAD_WORD_TOKENS - 1, _NOTHING, np.int32)
        produced = token_ids[num_prompt_tokens:][-len(recent) :]
        recent[len(recent) - len(produced) :] = produced
        self._recent[slot] = upload(recent, self._device)
        self._count_np[slot] = len(words)
        self._longest_np[slot] = max(map(len, sampling.bad_words))

    def release(self, slot: int) -> None:
        """The slot's next tenant may say anything."""
        if self._words is not None and self._count_np[slot]:
            self._words.clear(slot)
            self._count_np[slot] = self._longest_np[slot] = 0

    def is_used(self, slots_np: npt.NDArray[np.integer]) -> bool:
        """Whether any of these slots has bad words."""
        return bool(self._count_np[slots_np].any())

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Words and last output tokens of all slots on the device."""
        if self._words is None:
            self._words = self._allocate()
        return self._words.rows(), self._recent

    def bans(
        self, slots: torch.Tensor, slots_np: npt.NDArray[np.integer]
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Token ids [n, w] and which of them are banned, [n, w] bool; None if no row has any."""
        num_words = int(self._count_np[slots_np].max(initial=0))
        if self._words is None or not num_words:
            return None
        longest = int(self._longest_np[slots_np].max())
        words = self._words.rows()[slots, :num_words, MAX_BAD_WORD_TOKENS - longest :]
        last = words[:, :, -1]
        beginnings = words[:, :, :-1]
        recent = self._recent[slots, None, self._recent.shape[1] - (longest - 1) :]
        matches = ((beginnings == recent) | (beginnings == ANY_TOKEN)).all(-1)
        return last.clamp_min(0).to(torch.int64), matches & (last >= 0)

    def observe(self, slots: torch.Tensor, token_ids: torch.Tensor, valid: torch.Tensor) -> None:
        """Appends one output token for each valid row."""
        if not self._count_np.any():
            return
        recent = torch.cat((self._recent[slots, 1:], token_ids.to(torch.int32)[:, None]), dim=1)
        self._recent[torch.where(valid, slots, self._max_num_seqs)] = recent

    def _allocate(self) -> SlotTable:
        shape = (MAX_BAD_WORD_SEQUENCES, MAX_BAD_WORD_TOKENS)
        return SlotTable(self._max_num_seqs, shape, np.int32, NO_WORD, self._device)
