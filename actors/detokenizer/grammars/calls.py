"""What the text edge and its grammar process tell each other: frames, each a list of these."""

from collections.abc import Sequence
from typing import Final

import msgspec

from pillion.actors.detokenizer.grammars.source import GrammarSource
from pillion.messages.codec import frame
from pillion.messages.ids import ErrorCode, RequestId, SequenceId


class _Call(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    pass


class SetVocabulary(_Call, frozen=True):
    """The first call: the bytes of every token, empty where there is none."""

    tokens: list[bytes]
    special_ids: list[int]  # tokens that are never part of a text


class CompileGrammar(_Call, frozen=True):
    """Asks whether a grammar works. Answered by GrammarCompiled."""

    request_id: RequestId
    source: GrammarSource


class OpenGrammar(_Call, frozen=True):
    """A sequence begins with a grammar, perhaps with tokens that it has already. Answered by TokenMask."""

    sequence_id: SequenceId
    source: GrammarSource
    token_ids: bytes
    end_ids: list[int]  # tokens that may end it where the grammar is complete
    opening_ids: list[int]  # tokens that may come in place of the grammar's first one


class AdvanceGrammar(_Call, frozen=True):
    """An open sequence has more tokens. Answered by TokenMask."""

    sequence_id: SequenceId
    token_ids: bytes


class CloseGrammar(_Call, frozen=True):
    """A sequence is over. Not answered."""

    sequence_id: SequenceId


class GrammarCompiled(_Call, frozen=True):
    """The grammar works, or why it does not."""

    request_id: RequestId
    error: str | None = None


class TokenMask(_Call, frozen=True):
    """What may follow `num_tokens` tokens of a sequence: these, nothing more, or it has failed."""

    sequence_id: SequenceId
    num_tokens: int
    mask: bytes = b""
    is_complete: bool = False
    error: str | None = None
    error_code: ErrorCode = "invalid_request"


GrammarCall = SetVocabulary | CompileGrammar | OpenGrammar | AdvanceGrammar | CloseGrammar
GrammarReply = GrammarCompiled | TokenMask

_ENCODER: Final = msgspec.msgpack.Encoder()
CALLS: Final[msgspec.msgpack.Decoder[list[GrammarCall]]] = msgspec.msgpack.Decoder(
    list[GrammarCall]
)
REPLIES: Final[msgspec.msgpack.Decoder[list[GrammarReply]]] = msgspec.msgpack.Decoder(
    list[GrammarReply]
)


def encode_frame(messages: Sequence[GrammarCall | GrammarReply]) -> bytes:
    """One frame with these messages."""
    return frame(_ENCODER.encode(messages))
