"""A model that is a hash: each token follows from all tokens before it, and can be computed alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pillion.messages.ids import FINISH_ERROR, FINISH_LENGTH, FINISH_NONE, FINISH_STOP
from pillion.messages.sampling import TokenSampling

_MASK = (1 << 64) - 1
_NO_TOKEN = 0x9E3779B97F4A7C15


def next_state(state: int, token_id: int) -> int:
    """The state behind one more token: what a KV cell of this token would depend on."""
    mixed = (state ^ (token_id + 1)) * 0xBF58476D1CE4E5B9 & _MASK
    return (mixed ^ (mixed >> 29)) * 0x94D049BB133111EB & _MASK


def states_of(token_ids: Sequence[int]) -> list[int]:
    """The state behind each token."""
    state, states = _NO_TOKEN, []
    for token_id in token_ids:
        state = next_state(state, token_id)
        states.append(state)
    return states


def _allowed(mask: bytes, token_id: int) -> int:
    """The first allowed token from this one on, round the end of the vocabulary."""
    allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))
    return int(allowed[np.searchsorted(allowed, token_id) % len(allowed)])


@dataclass(frozen=True, slots=True)
class FakeModel:
    """Of `vocab_size` tokens. Every `poison_every`-th token, about, is a failure instead (0: none)."""

    vocab_size: int
    max_model_len: int
    poison_every: int = 0

    def sample(
        self,
        state: int,
        num_known: int,
        num_prompt: int,
        sampling: TokenSampling,
        mask: bytes = b"",
    ) -> tuple[int, int]:
        """The token behind `num_known` tokens that end in this state, and its finish code.

        `mask`: a bit for each token that may come; none: all may.
        """
        seed = sampling.seed if sampling.temperature else 0
        noise = next_state(state ^ (seed & _MASK), num_known)
        if self.poison_every and (noise >> 40) % self.poison_every == 0:
            return 0, FINISH_ERROR
        token_id = (noise >> 8) % self.vocab_size
        if mask:
            token_id = _allowed(mask, token_id)
        num_produced = num_known - num_prompt
        if num_produced < sampling.min_tokens:
            while token_id in sampling.stop_token_ids:
                token_id = (token_id + 1) % self.vocab_size
        if token_id in sampling.stop_token_ids:
            return token_id, FINISH_STOP
        if num_known + 1 >= self.max_total(num_prompt, sampling):
            return token_id, FINISH_LENGTH
        return token_id, FINISH_NONE

    def max_total(self, num_prompt: int, sampling: TokenSampling) -> int:
        """Tokens at which a sequence ends with "length"."""
        return min(num_prompt + sampling.max_tokens, self.max_model_len)

    def alone(self, prompt: Sequence[int], sampling: TokenSampling) -> tuple[list[int], int]:
        """What the model answers without any engine: the produced tokens and the finish code."""
        state = states_of(prompt)[-1]
        produced: list[int] = []
        while True:
            token_id, finish = self.sample(
                state, len(prompt) + len(produced), len(prompt), sampling
            )
            if finish == FINISH_ERROR:
                return produced, finish
            produced.append(token_id)
            if finish != FINISH_NONE:
                return produced, finish
            state = next_state(state, token_id)
