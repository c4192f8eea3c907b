"""Log-probabilities from the daemon's columns to the shapes of the OpenAI routes."""

from dataclasses import dataclass
from typing import Final

from pillion.actors.gateway.openai_replies import (
    ChatLogprobs,
    ChatTokenLogprob,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TopLogprob,
)
from pillion.messages.codec import unpack_floats, unpack_ids
from pillion.messages.text import TokenLogprobs

# JSON has no infinity; OpenAI's own answers use this for what cannot happen.
LEAST_LOGPROB: Final = -9999.0
# What a tokenizer writes for bytes that are no whole character.
_REPLACEMENT: Final = "\ufffd"


@dataclass(frozen=True, slots=True)
class _Candidate:
    token_id: int  # -1: there is none
    logprob: float
    text: str


@dataclass(frozen=True, slots=True)
class _Row:
    rank: int
    own: _Candidate
    top: list[_Candidate]  # likeliest first


def chat_logprobs(columns: TokenLogprobs) -> ChatLogprobs:
    """The entries of consecutive tokens of a chat."""
    return ChatLogprobs(
        [
            ChatTokenLogprob(
                row.own.text,
                row.own.logprob,
                _bytes(row.own.text),
                [TopLogprob(each.text, each.logprob, _bytes(each.text)) for each in row.top],
            )
            for row in _rows(columns)
        ]
    )


def completion_logprobs(
    columns: TokenLogprobs, offset: int, first_token: str = ""
) -> CompletionLogprobs:
    """The columns of consecutive tokens whose text begins at character `offset`.

    `first_token`: text of a first token that nothing was predicted for (a prompt's).
    """
    shaped = CompletionLogprobs([], [], [], [])
    for row in _rows(columns):
        known = row.own.token_id >= 0
        text = row.own.text if known else first_token
        shaped.text_offset.append(offset)
        shaped.tokens.append(text)
        shaped.token_logprobs.append(row.own.logprob if known else None)
        # The sampled token is listed too, even if it is not among the likeliest.
        best = {each.text: each.logprob for each in reversed([row.own, *row.top])}
        shaped.top_logprobs.append(
            dict(sorted(best.items(), key=lambda item: -item[1]))
            if known and columns.num_top
            else None
        )
        offset += len(text)
    return shaped


def join_logprobs(first: CompletionLogprobs, then: CompletionLogprobs) -> CompletionLogprobs:
    """Both, one after the other."""
    return CompletionLogprobs(
        first.text_offset + then.text_offset,
        first.token_logprobs + then.token_logprobs,
        first.tokens + then.tokens,
        first.top_logprobs + then.top_logprobs,
    )


def prompt_logprobs(columns: TokenLogprobs) -> PromptLogprobs:
    """An entry per prompt token; None where nothing was predicted."""
    shaped: PromptLogprobs = []
    for row in _rows(columns):
        entries: dict[str, PromptLogprob] = {}
        # The token itself first; among the likeliest, rank is place.
        for rank, each in [(row.rank, row.own), *enumerate(row.top, 1)]:
            if each.token_id >= 0:
                entry = PromptLogprob(each.logprob, rank, each.text)
                entries.setdefault(str(each.token_id), entry)
        shaped.append(entries or None)
    return shaped


def _rows(columns: TokenLogprobs) -> list[_Row]:
    width = 1 + columns.num_top
    candidates = [
        _Candidate(token_id, max(logprob, LEAST_LOGPROB), text)
        for token_id, logprob, text in zip(
            unpack_ids(columns.token_ids),
            unpack_floats(columns.logprobs),
            columns.decoded,
            strict=True,
        )
    ]
    return [
        _Row(
            rank,
            candidates[place * width],
            [
                each
                for each in candidates[place * width + 1 : (place + 1) * width]
                if each.token_id >= 0
            ],
        )
        for place, rank in enumerate(unpack_ids(columns.ranks))
    ]


def _bytes(text: str) -> list[int] | None:
    return None if _REPLACEMENT in text else list(text.encode())
