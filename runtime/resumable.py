"""Requests that can be sent again on another connection, and what has come of them so far."""

import secrets
from array import array
from copy import copy
from typing import Final

from msgspec.structs import replace

from pillion.messages.ids import FinishReason
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import (
    DetokenizeRequest,
    EmbedRequest,
    GenerateChunk,
    GenerateRequest,
    ReceivedSample,
    Resume,
    TokenizeRequest,
    Welcome,
)
from pillion.runtime.clock import NS_PER_MS, NS_PER_S
from pillion.runtime.connection_end import ConnectionLost
from pillion.runtime.errors import DaemonUnavailable

# A request that is lost more often in a row, each time so soon after it was sent and before anything has come
# of it, may be what ends the text edge. Fewer than the restarts that a daemon has for that by default.
MAX_LOSSES: Final = 3
SOON_NS: Final = 5 * NS_PER_S


Ask = TokenizeRequest | DetokenizeRequest | EmbedRequest


class _Sample:
    __slots__ = ("finish_reason", "num_chars", "token_ids")

    def __init__(self) -> None:
        self.token_ids: array[int] = array("i")
        self.num_chars = 0
        self.finish_reason: FinishReason | None = None


class Resumable:
    """Counts what comes of a request. It sends nothing itself and reads no clock."""

    def __init__(self, request: GenerateRequest, now_ns: int, max_losses: int = MAX_LOSSES) -> None:
        self._max_losses = max_losses
        params = request.sampling_params or SamplingParams()
        if params.seed is None:
            # The rest of the answer must come from the noise of its beginning, so the client has to know it.
            params = copy(params)
            params.seed = secrets.randbits(63)
        self.request = replace(request, sampling_params=params)  # to be sent first
        self._first_sent_ns = self._last_sent_ns = now_ns
        self._samples = [_Sample() for _ in range(params.n)]
        self._num_cached_tokens: int | None = None
        self._cache_miss_reason = ""
        self._num_losses = 0

    def note(self, chunk: GenerateChunk) -> None:
        """This chunk has come. Whether it fits those before it is not looked at."""
        self._num_losses = 0
        if not 0 <= chunk.index < len(self._samples):
            return
        sample = self._samples[chunk.index]
        sample.token_ids.frombytes(chunk.token_ids)
        sample.num_chars += len(chunk.text)
        sample.finish_reason = chunk.finish_reason
        if chunk.num_cached_tokens is not None:
            self._num_cached_tokens = chunk.num_cached_tokens
            self._cache_miss_reason = chunk.cache_miss_reason

    def again(self, lost: ConnectionLost, now_ns: int) -> GenerateRequest:
        """What asks for the rest after the connection was lost.

        Raises DaemonUnavailable if the request seems to be the cause of the losses.
        """
        if now_ns - self._last_sent_ns >= SOON_NS:
            self._num_losses = 0
        self._num_losses += not lost.refused
        if self._num_losses > self._max_losses:
            raise DaemonUnavailable(
                f"the connection was lost {self._num_losses} times before anything came of this request, so it"
                f" is not sent again: {lost.reason}"
            )
        self._last_sent_ns = now_ns
        elapsed_ms = (now_ns - self._first_sent_ns) // NS_PER_MS
        deadline_ms = self.request.deadline_ms
        return replace(
            self.request,
            deadline_ms=None if deadline_ms is None else max(1, deadline_ms - elapsed_ms),
            resume=Resume(
                samples=[
                    ReceivedSample(
                        token_ids=sample.token_ids.tobytes(),
                        num_chars=sample.num_chars,
                        finish_reason=sample.finish_reason,
                    )
                    for sample in self._samples
                ],
                elapsed_ms=elapsed_ms,
                num_cached_tokens=self._num_cached_tokens,
                cache_miss_reason=self._cache_miss_reason,
            ),
        )


class Question:
    """A request with one reply, to be sent again as it is."""

    def __init__(self, request: Ask) -> None:
        self.request = request

    def note(self, chunk: GenerateChunk) -> None:
        """A chunk is no reply to a question: nothing of it is kept."""

    def again(self, lost: ConnectionLost, now_ns: int) -> Ask:
        """The same request."""
        return self.request


def check_same_model(model_name: str, welcome: Welcome) -> None:
    """An answer goes on only with the model that began it. Raises DaemonUnavailable."""
    if model_name != welcome.model_name:
        raise DaemonUnavailable(
            f"the daemon that began this request served {model_name!r} and is gone; the one in its place serves"
            f" {welcome.model_name!r}"
        )


def lost_for_good(lost: ConnectionLost, error: DaemonUnavailable) -> DaemonUnavailable:
    """The exception for requests whose connection was lost when no other could be had."""
    return DaemonUnavailable(f"{lost.reason}; {error}")
