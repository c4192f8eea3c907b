"""From logits to tokens: every sampling feature in its order, for a batch whose rows differ in all of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.sampling import slot_table
from pillion.actors.gpu_worker.sampling.allowed_ids import AllowedIds
from pillion.actors.gpu_worker.sampling.bad_words import BadWords
from pillion.actors.gpu_worker.sampling.features import Features
from pillion.actors.gpu_worker.sampling.logit_bias import LogitBias
from pillion.actors.gpu_worker.sampling.logprobs import LogprobColumns, Logprobs, prompt_logprobs
from pillion.actors.gpu_worker.sampling.min_tokens import MinTokens
from pillion.actors.gpu_worker.sampling.penalties import Penalties
from pillion.actors.gpu_worker.sampling.step_end import End, SamplerTables
from pillion.actors.gpu_worker.sampling.token_choice import TokenChoice
from pillion.actors.gpu_worker.sampling.token_masks import TokenMaskTable
from pillion.actors.gpu_worker.table_writes import TableWrites
from pillion.kernels.ban_tokens import ban_tokens
from pillion.kernels.edit_logits import EditTables
from pillion.messages.sampling import (
    MAX_BAD_WORD_SEQUENCES,
    MAX_BAD_WORD_TOKENS,
    MAX_END_TOKEN_IDS,
    MAX_LOGIT_BIAS,
    TokenSampling,
)
from pillion.runtime.errors import InvariantBroken

__all__ = ["LogprobColumns", "Sampled", "Sampler", "prompt_logprobs"]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token for each row."""

    # [n] int32 device; each inside the vocabulary
    token_ids: torch.Tensor
    # None if no row asked for log-probabilities
    logprobs: LogprobColumns | None


class Sampler:
    """Holds each slot's sampling state and samples batches of slots.

    The order: copy raw logits for log-probabilities; token masks; allowed ids; logit bias; penalties; bans (bad words,
    stop ids before min_tokens); temperature, min-p, top-k, top-p; noise; the best. Features that no row of
    the batch uses cost one look at a host array each.

    If bans leave nothing of what is allowed, the best of the banned tokens is taken: a sequence always
    goes on inside its mask and its allowed ids. `masks` is fed by whoever owns this; rows whose mask is
    missing give tokens that mean nothing.
    """

    def __init__(
        self,
        vocab_size: int,
        max_num_seqs: int,
        max_model_len: int,
        device: torch.device,
        preallocate: bool | None = None,
        upload: Callable[[npt.NDArray[Any]], torch.Tensor] | None = None,
    ) -> None:
        """`preallocate` takes the memory of all features now, by default on CUDA, where graphs need fixed addresses.

        `upload`: as `Device.upload`.
        """
        if preallocate is None:
            preallocate = device.type == "cuda"
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self.masks = TokenMaskTable(vocab_size, max_num_seqs, device)
        self._choice = TokenChoice(vocab_size, max_num_seqs, device)
        self._allowed_ids = AllowedIds(vocab_size, max_num_seqs, device)
        self._logit_bias = LogitBias(max_num_seqs, device)
        self._penalties = Penalties(vocab_size, max_num_seqs, device, preallocate)
        self._min_tokens = MinTokens(max_num_seqs, device)
        self._bad_words = BadWords(max_num_seqs, device, preallocate)
        self.logprobs = Logprobs(max_num_seqs)
        self._features = Features(max_num_seqs, device)
        self._edited: set[int] = set()  # slots that ask for more than a choice
        # What most sequences write goes to the device together.
        self._together = (*self._choice.tables, self._features.table)
        self._writes = TableWrites(
            upload or partial(slot_table.upload, device=device),
            [table.device_rows for table in self._together],
        )
        # The rows that were asked about last, and the answer; None when any slot has a new tenant since.
        self._known_end: tuple[npt.NDArray[np.integer], End] | None = None

    def add(
        self,
        slot: int,
        sampling: TokenSampling,
        token_ids: npt.NDArray[np.int32],
        num_prompt_tokens: int,
        generation: int = 0,
    ) -> None:
        """A sequence takes a slot with these tokens, prompt and output, so far.

        Raises InvariantBroken if an id is outside the vocabulary or a list is longer than its table.
        """
        self._check(sampling, token_ids, num_prompt_tokens)
        self.release(slot)
        self.masks.add(slot, sampling, generation)
        self._choice.add(slot, sampling)
        self.logprobs.add(slot, sampling)
        self._features.add(slot, sampling)
        if not _edits_logits(sampling):
            return
        self._edited.add(slot)
        self._allowed_ids.add(slot, sampling)
        self._logit_bias.add(slot, sampling)
        self._penalties.add(slot, sampling, token_ids, num_prompt_tokens)
        self._min_tokens.add(slot, sampling, num_prompt_tokens)
        self._bad_words.add(slot, sampling, token_ids, num_prompt_tokens)

    def release(self, slot: int) -> None:
        """Leaves nothing of the slot's tenant; releasing a free slot changes nothing."""
        self._known_end = None
        self.masks.release(slot)
        self._features.release(slot)
        if slot not in self._edited:
            return
        self._edited.remove(slot)
        self._allowed_ids.release(slot)
        self._logit_bias.release(slot)
        self._penalties.release(slot)
        self._min_tokens.release(slot)
        self._bad_words.release(slot)

    def sample(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        slots_np: npt.NDArray[np.integer],
        positions: torch.Tensor,
    ) -> Sampled:
        """One token for each row, from its slot's settings.

        logits: [n, vocab or wider] float32; columns from the vocabulary's size on are padding and never
        sampled. slots: [n] int64, and slots_np the same on the host. positions: [n] int64, the positions in
        their sequences that the sampled tokens will take. Writes: logits.
        """
        logits = logits[:, : self._vocab_size]
        raw = self.logprobs.keep(logits, slots_np)
        self.masks.apply(logits, slots, slots_np)
        self._allowed_ids.apply(logits, slots, slots_np)
        self._logit_bias.apply(logits, slots, slots_np)
        self._penalties.apply(logits, slots, slots_np)
        fallback = self._ban(logits, slots, slots_np, positions)
        token_ids, best = self._choice.choose(logits, slots, slots_np, positions)
        if fallback is not None:
            fallback_ids, fallback_logits = fallback
            nothing_left = (best == -math.inf) & (fallback_logits > -math.inf)
            token_ids = torch.where(nothing_left, fallback_ids.to(torch.int32), token_ids)
        return Sampled(token_ids, None if raw is None else self.logprobs.compute(raw, token_ids))

    def end_for(self, slots_np: npt.NDArray[np.integer]) -> End:
        """The least that does what these slots ask for, token masks left out.

        An array that was given before must hold the same slots.
        """
        if self._known_end is not None and self._known_end[0] is slots_np:
            return self._known_end[1]
        end = self._least_end(slots_np)
        self._known_end = (slots_np, end)
        return end

    def _least_end(self, slots_np: npt.NDArray[np.integer]) -> End:
        edits = (
            self._allowed_ids,
            self._logit_bias,
            self._penalties,
            self._min_tokens,
            self._bad_words,
            self.logprobs,
        )
        if any(edit.is_used(slots_np) for edit in edits):
            return End.FULL
        return End.SAMPLED if self._choice.is_used(slots_np) else End.GREEDY

    def tables(self) -> SamplerTables:
        """The tables on the device, which never move; brings there what the host has written since."""
        for table in self._together:
            table.stage(self._writes)
        self._writes.flush()
        bias_ids, biases = self._logit_bias.rows()
        token_counts, strengths = self._penalties.rows()
        stop_ids, first_end = self._min_tokens.rows()
        bad_words, recent = self._bad_words.rows()
        edits = EditTables(
            self.masks.rows(),
            self._allowed_ids.rows(),
            bias_ids,
            biases,
            token_counts,
            strengths,
            stop_ids,
            first_end,
            bad_words,
            recent,
        )
        return SamplerTables(*self._choice.rows(), self._features.rows(), edits)

    def observe(self, slots: torch.Tensor, token_ids: torch.Tensor, valid: torch.Tensor) -> None:
        """Remembers sampled tokens for penalties and bad words.

        slots: [n] int64, valid ones different from each other. token_ids: [n]. valid: [n] bool; the other
        rows are masked and count for nothing.
        """
        self._penalties.observe(slots, token_ids, valid)
        self._bad_words.observe(slots, token_ids, valid)

    def _ban(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        slots_np: npt.NDArray[np.integer],
        positions: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Writes: logits. Returns each row's best banned id and its logit, or None if nothing is banned."""
        lists = [
            bans
            for bans in (
                self._min_tokens.bans(slots, slots_np, positions),
                self._bad_words.bans(slots, slots_np),
            )
            if bans is not None
        ]
        if not lists:
            return None
        token_ids, is_banned = (torch.cat(parts, dim=1) for parts in zip(*lists, strict=True))
        return ban_tokens(logits, token_ids, is_banned)

    def _check(
        self, sampling: TokenSampling, token_ids: npt.NDArray[np.int32], num_prompt_tokens: int
    ) -> None:
        """The text edge lets through nothing that fails here."""
        if not 0 <= num_prompt_tokens <= len(token_ids) <= self._max_model_len:
            raise InvariantBroken(
                f"{num_prompt_tokens} prompt tokens of {len(token_ids)}, at most {self._max_model_len}"
            )
        if _edits_logits(sampling) or sampling.stop_token_ids:
            _check_lengths(sampling)
        listed = (
            *sampling.logit_bias,
            *sampling.stop_token_ids,
            *sampling.allowed_token_ids,
            *(token for word in sampling.bad_words for token in word),
        )
        # A negative number is a large one without its sign.
        highest = token_ids.view(np.uint32).max(initial=0)
        if listed or highest >= self._vocab_size:
            lowest = min(0, *listed, int(token_ids.min(initial=0)))
            highest = max(0, *listed, int(token_ids.max(initial=0)))
            if lowest < 0 or highest >= self._vocab_size:
                raise InvariantBroken(
                    f"token ids from {lowest} to {highest} in a vocabulary of {self._vocab_size}"
                )


def _edits_logits(sampling: TokenSampling) -> bool:
    """Whether logits are edited before a token is chosen, masks left out."""
    return bool(
        sampling.allowed_token_ids
        or sampling.logit_bias
        or sampling.bad_words
        or sampling.min_tokens
        or sampling.uses_penalties
    )


def _check_lengths(sampling: TokenSampling) -> None:
    lengths = (
        ("logit_bias", len(sampling.logit_bias), MAX_LOGIT_BIAS),
        ("stop_token_ids", len(sampling.stop_token_ids), MAX_END_TOKEN_IDS),
        ("bad_words", len(sampling.bad_words), MAX_BAD_WORD_SEQUENCES),
        ("a bad word", max(map(len, sampling.bad_words), default=0), MAX_BAD_WORD_TOKENS),
    )
    for name, length, most in lengths:
        if length > most:
            raise InvariantBroken(f"{name} has {length} entries, its table holds {most}")
    if not all(sampling.bad_words):
        raise InvariantBroken("a bad word has no tokens")
