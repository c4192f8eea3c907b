"""Log-probabilities on their way from the worker's columns to a client."""

from array import array
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pillion.messages.codec import unpack_ids
from pillion.messages.steps import PromptLogprobs, SampledLogprobs
from pillion.messages.text import TokenLogprobs
from pillion.runtime.errors import InvariantBroken

# Of one token: ids and log-probabilities [1 + num_top], rank; packed.
LogprobRow: TypeAlias = tuple[bytes, bytes, bytes]

_ID_BYTES = 4


def rows_by_index(logprobs: SampledLogprobs) -> dict[int, int]:
    """Row of the StepOutput -> row of its log-probabilities."""
    return {row: place for place, row in enumerate(unpack_ids(logprobs.rows))}


def cut_row(logprobs: SampledLogprobs, place: int, num_top: int) -> LogprobRow:
    """What a request that asked for `num_top` gets. Raises InvariantBroken if the worker sent less."""
    if num_top > logprobs.num_top:
        raise InvariantBroken(
            f"the worker sent {logprobs.num_top} log-probabilities where {num_top} are due"
        )
    start = place * (1 + logprobs.num_top) * _ID_BYTES
    end = start + (1 + num_top) * _ID_BYTES
    rank = place * _ID_BYTES
    return (
        logprobs.token_ids[start:end],
        logprobs.logprobs[start:end],
        logprobs.ranks[rank : rank + _ID_BYTES],
    )


def join_rows(
    rows: Sequence[LogprobRow], num_top: int, token_text: Callable[[int], str]
) -> TokenLogprobs:
    """The rows of consecutive tokens as a client gets them."""
    return _with_texts(
        num_top,
        b"".join([row[0] for row in rows]),
        b"".join([row[1] for row in rows]),
        b"".join([row[2] for row in rows]),
        token_text,
    )


class PromptLogprobTable:
    """Collects the log-probabilities of a prompt, which come in parts and after a preemption again."""

    def __init__(self, num_prompt_tokens: int, num_top: int) -> None:
        self._num_top = num_top
        self._width = 1 + num_top
        count = num_prompt_tokens * self._width
        # The first token has no predecessor: its row stays as it is here.
        self._token_ids = array("i", [-1]) * count
        self._logprobs = array("f", [0.0]) * count
        self._ranks = array("i", [0]) * num_prompt_tokens
        self._missing = bytearray(b"\x01") * num_prompt_tokens
        self._missing[:1] = b"\x00"
        self._num_missing = max(num_prompt_tokens - 1, 0)

    @property
    def complete(self) -> bool:
        """Whether every position is there."""
        return self._num_missing == 0

    def add(self, part: PromptLogprobs) -> None:
        """Takes a part. Raises InvariantBroken if it does not fit the prompt or is too narrow."""
        ranks = array("i", part.ranks)
        end = part.start + len(ranks)
        if part.start < 1 or end > len(self._ranks) or part.num_top < self._num_top:
            raise InvariantBroken(
                f"prompt log-probabilities of positions {part.start} to {end - 1}, {part.num_top} each, for a"
                f" prompt of {len(self._ranks)} tokens with {self._num_top} each"
            )
        source = 1 + part.num_top
        ids, values = array("i", part.token_ids), array("f", part.logprobs)
        for row in range(len(ranks)):
            place = (part.start + row) * self._width
            begin = row * source
            self._token_ids[place : place + self._width] = ids[begin : begin + self._width]
            self._logprobs[place : place + self._width] = values[begin : begin + self._width]
        self._ranks[part.start : end] = ranks
        self._num_missing -= self._missing.count(1, part.start, end)
        self._missing[part.start : end] = bytes(len(ranks))

    def columns(self, token_text: Callable[[int], str]) -> TokenLogprobs:
        """All positions as a client gets them."""
        return _with_texts(
            self._num_top,
            self._token_ids.tobytes(),
            self._logprobs.tobytes(),
            self._ranks.tobytes(),
            token_text,
        )


def _with_texts(
    num_top: int, token_ids: bytes, logprobs: bytes, ranks: bytes, token_text: Callable[[int], str]
) -> TokenLogprobs:
    return TokenLogprobs(
        num_top=num_top,
        token_ids=token_ids,
        logprobs=logprobs,
        ranks=ranks,
        decoded=[
            token_text(token_id) if token_id >= 0 else "" for token_id in unpack_ids(token_ids)
        ],
    )
