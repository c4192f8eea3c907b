"""What each token id stands for: bytes, and text where the bytes are text on their own."""

import json
import re
from typing import Any, Final

import tokenizers

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTable(dict[int, "str | bytes"]):
    """Token id -> its text, or its bytes where these are not UTF-8 on their own. Filled on first use.

    An id without a token, as models with a padded vocabulary may sample it, stands for no text.
    Only decoders that work token by token can be tabulated; `tabulate` says whether this one does.
    """

    def __init__(self, backend: tokenizers.Tokenizer, rules: "_Rules") -> None:
        super().__init__()
        self._backend = backend
        self._rules = rules

    @property
    def strips_leading_space(self) -> bool:
        """Whether a text that starts at its beginning loses one space in front."""
        return self._rules.strips_leading_space

    @property
    def is_byte_level(self) -> bool:
        """Whether the vocabulary spells each byte as one character."""
        return self._rules.byte_level

    def __missing__(self, token_id: int) -> "str | bytes":
        token = self._backend.id_to_token(token_id)
        data = b"" if token is None else self._rules.token_bytes(token)
        try:
            piece: str | bytes = data.decode()
        except UnicodeDecodeError:
            piece = data
        self[token_id] = piece
        return piece

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token."""
        piece = self[token_id]
        return piece.encode() if isinstance(piece, str) else piece

    def spellings(self, vocab_size: int) -> list[bytes]:
        """The bytes of every token up to the vocabulary's size; nothing of it is kept here."""
        names = map(self._backend.id_to_token, range(vocab_size))
        return [b"" if name is None else self._rules.token_bytes(name) for name in names]

    def token_text(self, token_id: int) -> str:
        """The text of a token alone, U+FFFD for bytes that are no character."""
        piece = self[token_id]
        return piece if isinstance(piece, str) else piece.decode("utf-8", "replace")


def tabulate(backend: tokenizers.Tokenizer) -> TokenTable | None:
    """The table of a tokenizer; None if its decoder looks at more than one token at a time."""
    if backend.decoder is None:
        return None
    rules = _Rules()
    if not all(rules.add(step) for step in _steps(json.loads(backend.decoder.__getstate__()))):
        return None
    return TokenTable(backend, rules)


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        return [step for each in decoder["decoders"] for step in _steps(each)]
    return [decoder]


class _Rules:
    """The steps of a decoder, applied to one token."""

    def __init__(self) -> None:
        self.byte_level = False
        self._byte_fallback = False
        self._replacements: list[tuple[str, str]] = []
        self.strips_leading_space = False

    def add(self, step: dict[str, Any]) -> bool:
        """Takes over one step; False if it cannot be applied token by token."""
        kind = step["type"]
        if kind == "ByteLevel":
            self.byte_level = True
        elif kind == "ByteFallback":
            self._byte_fallback = True
        elif kind == "Replace" and "String" in step["pattern"]:
            self._replacements.append((step["pattern"]["String"], step["content"]))
        elif kind == "Metaspace":
            self._replacements.append((step["replacement"], " "))
            self.strips_leading_space = step["prepend_scheme"] != "never"
        elif kind == "Strip" and step["content"] == " " and step["start"] <= 1 and not step["stop"]:
            self.strips_leading_space = step["start"] == 1
        else:
            return bool(kind == "Fuse")
        return True

    def token_bytes(self, token: str) -> bytes:
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        for old, new in self._replacements:
            token = token.replace(old, new)
        if self.byte_level:
            try:
                return bytes([BYTE_OF_CHARACTER[character] for character in token])
            except KeyError:  # an added token, written as plain text
                pass
        return token.encode()


def _byte_characters() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for characters from U+0100 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + rank): byte for rank, byte in enumerate(others)})
    return alphabet


BYTE_OF_CHARACTER: Final = _byte_characters()
