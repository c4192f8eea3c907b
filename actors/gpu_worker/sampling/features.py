"""Which edits each slot wants, and whether log-probabilities: for ends of steps that are launched without a look."""

import numpy as np
import torch

from pillion.actors.gpu_worker.sampling.slot_table import SlotTable
from pillion.kernels.edit_logits import (
    ALLOWED_IDS,
    BAD_WORDS,
    LOGIT_BIAS,
    MIN_TOKENS,
    PENALTIES,
    TOKEN_MASK,
)
from pillion.messages.sampling import TokenSampling

_NOTHING = (0, -1)


class Features:
    """Bits as `edit_logits` reads them, and the number of best tokens, -1 without log-probabilities."""

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        # [max_num_seqs, 2] int32
        self.table = SlotTable(max_num_seqs, (2,), np.int32, _NOTHING, device)
        self._used: set[int] = set()  # slots that want something

    def add(self, slot: int, sampling: TokenSampling) -> None:
        """A sequence takes the slot, which was released before."""
        wanted = (
            (sampling.needs_masks, TOKEN_MASK),
            (sampling.allowed_token_ids, ALLOWED_IDS),
            (sampling.logit_bias, LOGIT_BIAS),
            (sampling.uses_penalties, PENALTIES),
            (sampling.min_tokens and sampling.stop_token_ids, MIN_TOKENS),
            (sampling.bad_words, BAD_WORDS),
        )
        bits = sum(bit for is_wanted, bit in wanted if is_wanted)
        num_top = _NOTHING[1] if sampling.logprobs is None else sampling.logprobs
        if (bits, num_top) != _NOTHING:
            self.table.write(slot, (bits, num_top))
            self._used.add(slot)

    def release(self, slot: int) -> None:
        """The slot's next tenant starts without any."""
        if slot in self._used:
            self.table.clear(slot)
            self._used.remove(slot)

    def rows(self) -> torch.Tensor:
        """The whole table on the device, [max_num_seqs, 2] int32."""
        return self.table.rows()
