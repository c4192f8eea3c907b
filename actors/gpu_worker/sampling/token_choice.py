"""Temperature, filters and seeds: the last stage, which picks the token."""

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.sampling.slot_table import SlotTable
from pillion.kernels.sample import MIN_TEMPERATURE, sample
from pillion.messages.sampling import TokenSampling


class TokenChoice:
    """Greedy and sampled rows mix in one batch; the formulas are those of the kernels.

    A temperature below 1e-5 is greedy. Otherwise, as in vLLM: divide by the temperature, then min-p, then
    top-k, then top-p of the mass that is left; the noise is a function of (seed, position, token id).
    """

    def __init__(self, vocab_size: int, max_num_seqs: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        # [max_num_seqs, 3] float32; temperature, min-p, top-p
        self._shape = SlotTable(max_num_seqs, (3,), np.float32, 0.0, device)
        # [max_num_seqs, 2] int64; top-k (the vocabulary's size: off), seed
        self._integers = SlotTable(max_num_seqs, (2,), np.int64, 0, device)
        self.tables = self._shape, self._integers
        self._is_sampled_np = np.zeros(max_num_seqs, np.bool_)
        self._is_filtered_np = np.zeros(max_num_seqs, np.bool_)

    def add(self, slot: int, sampling: TokenSampling) -> None:
        """A sequence takes the slot."""
        top_k = sampling.top_k if 0 < sampling.top_k < self._vocab_size else self._vocab_size
        self._shape.write_row(slot, (sampling.temperature, sampling.min_p, sampling.top_p))
        # Seeds are 64 bits, whether the edge counts them as signed or not.
        seed = (sampling.seed + 2**63) % 2**64 - 2**63
        self._integers.write_row(slot, (top_k, seed))
        # Compared as the device will: in float32.
        self._is_sampled_np[slot] = self._shape.host_np[slot, 0] >= np.float32(MIN_TEMPERATURE)
        self._is_filtered_np[slot] = self._is_sampled_np[slot] and (
            sampling.min_p > 0.0 or top_k < self._vocab_size or sampling.top_p < 1.0
        )

    def is_used(self, slots_np: npt.NDArray[np.integer]) -> bool:
        """Whether any of these slots is sampled, not greedy."""
        return bool(self._is_sampled_np[slots_np].any())

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Settings of all slots on the device, [max_num_seqs, 3] float32 and [max_num_seqs, 2] int64."""
        return self._shape.rows(), self._integers.rows()

    def choose(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        slots_np: npt.NDArray[np.integer],
        positions: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids [n] int32 and each row's largest logit [n]. Writes: logits."""
        shape = self._shape.rows()[slots]
        integers = self._integers.rows()[slots]
        return sample(
            logits,
            temperature=shape[:, 0],
            min_p=shape[:, 1],
            top_p=shape[:, 2],
            top_k=integers[:, 0],
            seeds=integers[:, 1],
            positions=positions,
            all_greedy=not self._is_sampled_np[slots_np].any(),
            any_filter=bool(self._is_filtered_np[slots_np].any()),
        )
