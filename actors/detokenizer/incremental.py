"""Text from tokens, one token at a time, never a broken character.

The parts always join to the text of all tokens decoded at once, whatever the tokens are.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from pillion.actors.detokenizer.token_table import TokenTable

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
# Tokens that one character may need; what is longer is not going to become text.
_MAX_HELD_TOKENS: Final = 16


class TextStream(Protocol):
    """Turns the tokens of one sequence into text."""

    def push(self, token_id: int) -> str:
        """The text that is certain now."""

    def flush(self) -> str:
        """The rest, at the end of the sequence; incomplete characters become U+FFFD."""


class TableText:
    """For tokens that stand for bytes: holds back the bytes of one incomplete character, nothing else."""

    __slots__ = ("_held", "_hidden", "_table")

    def __init__(self, table: TokenTable, hidden: frozenset[int]) -> None:
        self._table = table
        self._hidden = hidden  # ids that give no text
        self._held = b""

    def push(self, token_id: int) -> str:
        """The text that is certain now."""
        if token_id in self._hidden:
            return ""
        piece = self._table[token_id]
        if isinstance(piece, str):
            if not self._held:
                return piece
            piece = piece.encode()
        data = self._held + piece
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text

    def flush(self) -> str:
        """The rest: U+FFFD if the last character is incomplete."""
        text = self._held.decode("utf-8", "replace")
        self._held = b""
        return text


class ContextText:
    """For other decoders: decodes a short window twice, with and without the new tokens.

    Such decoders give no byte-exact promise; the text is theirs as long as one token changes only the text
    of its neighbours.
    """

    __slots__ = ("_added", "_decode", "_hidden", "_ids", "_num_shown", "_spaced")

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        hidden: frozenset[int],
        added: frozenset[int],
        spaced: bool,
    ) -> None:
        self._decode = decode
        self._hidden = hidden
        self._added = added
        self._spaced = spaced  # whether a space that the decoder puts between added tokens stays
        self._ids: list[int] = []  # the tokens shown last, then those that are held back
        self._num_shown = 0

    def push(self, token_id: int) -> str:
        """The text that is certain now."""
        if token_id in self._hidden:
            return ""
        self._ids.append(token_id)
        text = self._new_text()
        num_held = len(self._ids) - self._num_shown
        if num_held < _MAX_HELD_TOKENS and (not text or text.endswith(_REPLACEMENT)):
            return ""
        return self._show(text)

    def flush(self) -> str:
        """The rest."""
        return self._show(self._new_text())

    def _new_text(self) -> str:
        shown = self._decode(self._ids[: self._num_shown])
        return self._decode(self._ids)[len(shown) :]

    def _show(self, text: str) -> str:
        ids = self._ids[max(self._num_shown - 1, 0) :]
        if not self._spaced and len(ids) > 1 and self._added.issuperset(ids):
            text = text.removeprefix(" ")
        del self._ids[: self._num_shown]  # only the tokens just shown are context for the next
        self._num_shown = len(self._ids)
        return text
