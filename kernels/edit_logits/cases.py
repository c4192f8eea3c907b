"""Case grid of the edits: each alone, all together, none; words of every length, bans of all that is left."""

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from pillion.kernels.edit_logits.reference import (
    ALLOWED_IDS,
    ANY_TOKEN,
    BAD_WORDS,
    LOGIT_BIAS,
    MIN_TOKENS,
    NO_WORD,
    PENALTIES,
    TOKEN_MASK,
    EditTables,
)

_EVERYTHING: Final = TOKEN_MASK | ALLOWED_IDS | LOGIT_BIAS | PENALTIES | MIN_TOKENS | BAD_WORDS
_FEATURES: Final = (
    0,
    TOKEN_MASK,
    ALLOWED_IDS,
    LOGIT_BIAS,
    PENALTIES,
    MIN_TOKENS,
    BAD_WORDS,
    TOKEN_MASK | LOGIT_BIAS,
    MIN_TOKENS | BAD_WORDS,
    _EVERYTHING,
)


class Inputs(NamedTuple):
    """The arguments of `edit_logits`."""

    logits: torch.Tensor
    raw: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    features: torch.Tensor
    wants_logprobs: torch.Tensor
    tables: EditTables


@dataclass(frozen=True, slots=True)
class Case:
    """One row for each kind of features, twice: with and without log-probabilities."""

    vocab_size: int
    num_biases: int
    num_stops: int
    num_words: int
    word_length: int

    def inputs(self, device: torch.device) -> Inputs:
        """More slots than rows; the vocabulary may be so small that everything is banned."""
        generator = torch.Generator().manual_seed(self.vocab_size)
        vocab, num_rows, num_slots = self.vocab_size, 2 * len(_FEATURES), 2 * len(_FEATURES) + 3

        def integers(low: int, high: int, *shape: int) -> torch.Tensor:
            return torch.randint(low, high, shape, generator=generator)

        def chance(probability: float, *shape: int) -> torch.Tensor:
            return torch.rand(shape, generator=generator) < probability

        logits = torch.randn(num_rows, vocab, generator=generator) * 4
        order = torch.rand(num_slots, max(vocab, self.num_biases), generator=generator).argsort(-1)
        biases = torch.randn(num_slots, self.num_biases, generator=generator)
        ids = order[:, : self.num_biases]
        # As in a table that isn't full: bias 0 for some token.
        unused = chance(0.3, num_slots, self.num_biases) | (ids >= vocab)
        counts = integers(0, 6, num_slots + 1, vocab) - 2**15 * chance(0.3, num_slots + 1, vocab)
        # Few tokens, so that words often match; the last may be no word.
        words = integers(0, 3, num_slots, self.num_words, self.word_length)
        words[..., :-1].masked_fill_(chance(0.6, *words[..., :-1].shape), ANY_TOKEN)
        words[..., -1] = integers(0, vocab, num_slots, self.num_words)
        words[:, -1] = NO_WORD
        tables = EditTables(
            token_masks=integers(-(2**31), 2**31, num_slots, -(-vocab // 32)).int(),
            allowed_ids=integers(-(2**31), 2**31, num_slots, -(-vocab // 32)).int(),
            bias_ids=ids.masked_fill(unused, 0),
            biases=biases.masked_fill(unused, 0.0),
            token_counts=(counts * chance(0.5, *counts.shape)).to(torch.int16),
            strengths=torch.rand(num_slots, 3, generator=generator) + 0.5,
            stop_ids=integers(-1, vocab, num_slots, self.num_stops),
            first_end=integers(0, 20, num_slots),
            bad_words=words.int(),
            recent=integers(0, 3, num_slots + 1, self.word_length - 1).int(),
        )
        logits, raw, slots, positions, features, wants_logprobs = (
            logits,
            torch.full((num_rows, vocab), torch.nan),
            torch.randperm(num_slots, generator=generator)[:num_rows],
            integers(0, 20, num_rows),
            torch.tensor(_FEATURES * 2, dtype=torch.int32),
            torch.tensor([1.0, -1.0]).repeat_interleave(len(_FEATURES)),
        )
        return Inputs(
            logits.to(device),
            raw.to(device),
            slots.to(device),
            positions.to(device),
            features.to(device),
            wants_logprobs.to(device),
            EditTables(*(table.to(device) for table in tables)),
        )


CASES: Final = (
    Case(1, 3, 2, 2, 2),
    Case(33, 40, 5, 60, 3),
    Case(1003, 100, 33, 20, 5),
    Case(9001, 1024, 160, 512, 32),
)
