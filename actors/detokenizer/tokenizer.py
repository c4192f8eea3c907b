"""Text to token ids and back."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import tokenizers

from pillion.actors.detokenizer.incremental import ContextText, TableText, TextStream
from pillion.actors.detokenizer.token_table import tabulate
from pillion.runtime.errors import InvariantBroken

# `encode` keeps the interpreter locked, `encode_batch_fast` costs a little more and does not.
_UNLOCKED_FROM_CHARS: Final = 1024
# A normalizer may shrink a text (composed characters), so the bound below is taken with this much room.
_NORMALIZER_SHRINKAGE: Final = 4


class Tokenizer:
    """A model's vocabulary. Safe to use from several threads.

    Special tokens that are written out in a text are recognised, as the model's makers do it.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self._added_ids = frozenset(added)
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._table = tabulate(backend)
        self._texts: dict[int, str] = {}
        self.max_token_bytes = self._longest_token_bytes()

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """The token ids of a text; with the special tokens that the model wants around it, if asked for.

        Other threads run meanwhile if the text is long. Raises ValueError for text that is not Unicode.
        """
        try:
            if len(text) < _UNLOCKED_FROM_CHARS:
                encoding: Any = self._backend.encode(text, add_special_tokens=add_special_tokens)
            else:
                encoding = self._backend.encode_batch_fast(
                    [text], add_special_tokens=add_special_tokens
                )[0]
        except TypeError as error:  # a lone surrogate
            raise ValueError(f"the text is not valid Unicode: {error}") from error
        token_ids: list[int] = encoding.ids
        return token_ids

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool) -> str:
        """The text of token ids from its beginning. Raises ValueError for ids below 0 or above 2**32 - 1."""
        stream = self.stream(skip_special_tokens)
        ids = list(token_ids)
        if ids and not 0 <= min(ids) <= max(ids) < 2**32:
            raise ValueError(
                f"token ids must be from 0 to {2**32 - 1}, got {min(ids)} to {max(ids)}"
            )
        text = "".join([stream.push(token_id) for token_id in ids]) + stream.flush()
        if self._table is not None and self._table.strips_leading_space:
            return text.removeprefix(" ")
        return text

    def stream(
        self,
        skip_special_tokens: bool,
        spaces_between: bool = True,
        shown: frozenset[str] = frozenset(),
    ) -> TextStream:
        """A new stream of text that continues another text.

        `spaces_between`: keep the space that decoders of words put between two added tokens; decoders of
        bytes put none. `shown`: special tokens that are not skipped.
        """
        hidden = self.special_ids if skip_special_tokens else frozenset()
        if hidden and shown:
            hidden -= {self.token_id(token) for token in shown}
        if self._table is not None:
            return TableText(self._table, hidden)
        return ContextText(self._decode_window, hidden, self._added_ids, spaces_between)

    def token_text(self, token_id: int) -> str:
        """The text of one token alone, special tokens included."""
        if self._table is not None:
            return self._table.token_text(token_id)
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self._decode_window([token_id])
        return text

    @property
    def can_spell(self) -> bool:
        """Whether each token stands for bytes on its own, as grammars need it."""
        return self._table is not None

    def spellings(self, vocab_size: int) -> list[bytes]:
        """The bytes of every token, empty where an id has none. Raises InvariantBroken unless `can_spell`."""
        if self._table is None:
            raise InvariantBroken("the tokens of this tokenizer are no bytes")
        return self._table.spellings(vocab_size)

    def min_tokens(self, num_bytes: int) -> int:
        """A lower bound of the tokens that a text of so many bytes has, without reading it."""
        shrinkage = 1 if self._backend.normalizer is None else _NORMALIZER_SHRINKAGE
        return num_bytes // (self.max_token_bytes * shrinkage)

    def _decode_window(self, token_ids: Sequence[int]) -> str:
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=False)
        return text

    def _longest_token_bytes(self) -> int:
        # A byte-level vocabulary spells each byte as one character; added tokens are plain text.
        byte_level = self._table is not None and self._table.is_byte_level
        vocabulary = self._backend.get_vocab(with_added_tokens=False)
        longest = max(
            (len(token) if byte_level else len(token.encode()) for token in vocabulary), default=1
        )
        added = self._backend.get_added_tokens_decoder().values()
        return max([1, longest, *(len(token.content.encode()) for token in added)])
