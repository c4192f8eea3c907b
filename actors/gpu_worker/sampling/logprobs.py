"""Log-probabilities of sampled tokens and of prompt tokens, from the logits as the model gave them."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.sampling.slot_table import upload
from pillion.kernels.token_logprobs import token_logprobs
from pillion.messages.sampling import TokenSampling

_NOT_ASKED: Final = -1


@dataclass(frozen=True, slots=True)
class LogprobColumns:
    """Log-probabilities of the rows that asked for them. Column 0 is the sampled token, then the best."""

    # [m] int32 host; rows of the batch
    rows_np: npt.NDArray[np.int32]
    # [m, 1 + num_top] int32 device; -1 beyond what a row asked for
    token_ids: torch.Tensor
    # [m, 1 + num_top] float32 device; finite
    logprobs: torch.Tensor
    # [m] int32 device; of the sampled token, 1 is the best
    ranks: torch.Tensor


@dataclass(frozen=True, slots=True)
class RawLogits:
    """Copies of the rows that need log-probabilities, taken before anything is edited."""

    rows_np: npt.NDArray[np.int32]
    num_top_np: npt.NDArray[np.int64]
    # [m] int64 device; None: all rows of the batch
    rows: torch.Tensor | None
    # [m, vocab] float32 device
    logits: torch.Tensor


class Logprobs:
    """What each slot asked for; nothing of it is needed on the device."""

    def __init__(self, max_num_seqs: int) -> None:
        self._num_top_np = np.full(max_num_seqs, _NOT_ASKED, np.int64)

    def add(self, slot: int, sampling: TokenSampling) -> None:
        """A sequence takes the slot."""
        self._num_top_np[slot] = _NOT_ASKED if sampling.logprobs is None else sampling.logprobs

    def is_used(self, slots_np: npt.NDArray[np.integer]) -> bool:
        """Whether any of these slots wants log-probabilities."""
        return bool((self._num_top_np[slots_np] != _NOT_ASKED).any())

    def wanted(self, slots_np: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.int32], int] | None:
        """Rows that ask for log-probabilities, and how many best tokens at the most; None if no row does."""
        num_top_np = self._num_top_np[slots_np]
        rows_np = np.flatnonzero(num_top_np != _NOT_ASKED)
        return (rows_np.astype(np.int32), int(num_top_np.max())) if len(rows_np) else None

    def keep(self, logits: torch.Tensor, slots_np: npt.NDArray[np.integer]) -> RawLogits | None:
        """The raw logits of the rows that ask for log-probabilities; None if none does."""
        num_top_np = self._num_top_np[slots_np]
        rows_np = np.flatnonzero(num_top_np != _NOT_ASKED)
        if not len(rows_np):
            return None
        rows = None if len(rows_np) == len(slots_np) else upload(rows_np, logits.device)
        kept = logits.clone() if rows is None else logits[rows]
        return RawLogits(rows_np.astype(np.int32), num_top_np[rows_np], rows, kept)

    def compute(self, raw: RawLogits, token_ids: torch.Tensor) -> LogprobColumns:
        """For the tokens [n] that were sampled in the whole batch."""
        num_top = int(raw.num_top_np.max())
        sampled = token_ids if raw.rows is None else token_ids[raw.rows]
        ids, logprobs, ranks = _padded_logprobs(raw.logits, sampled, num_top)
        if (raw.num_top_np < num_top).any():
            limits = upload(raw.num_top_np, ids.device)[:, None]
            ids.masked_fill_(torch.arange(1 + num_top, device=ids.device) > limits, -1)
        return LogprobColumns(raw.rows_np, ids, logprobs, ranks)


def prompt_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities of prompt tokens; the caller cuts long prompts into pieces that fit the memory.

    logits: [m, vocab] float32, each row from the position before its token. token_ids: [m]. Returns ids
    [m, 1 + num_top] int32 with the prompt's own token first and -1 beyond the vocabulary's size, finite
    logprobs of the same shape, and ranks [m] int32; rank 1 is the best.
    """
    return _padded_logprobs(logits, token_ids, num_top)


def _padded_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As the kernel, also when more are asked for than there are tokens."""
    num_found = min(num_top, logits.shape[-1])
    ids, logprobs, ranks = token_logprobs(logits, token_ids, num_found)
    missing = (0, num_top - num_found)
    ids = torch.nn.functional.pad(ids, missing, value=-1)
    return ids, torch.nn.functional.pad(logprobs, missing), ranks
