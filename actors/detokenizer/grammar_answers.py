"""What the grammar process says, and what it means for the requests that wait for it."""

from typing import assert_never

from pillion.actors.detokenizer.admissions import Admissions
from pillion.actors.detokenizer.grammars.calls import GrammarCompiled, GrammarReply, TokenMask
from pillion.actors.detokenizer.grammars.desk import COMPILE_LOST, MASK_LOST
from pillion.actors.detokenizer.open_requests import OpenSample
from pillion.actors.detokenizer.request_book import RequestBook
from pillion.messages.base import RingMessage
from pillion.messages.ids import ErrorCode, FinishReason
from pillion.messages.requests import AbortRequest
from pillion.runtime.errors import RequestError


class GrammarAnswers:
    """Admits or refuses requests with a grammar, and ends samples whose grammar is complete or has failed."""

    def __init__(
        self,
        epoch: int,
        admissions: Admissions,
        book: RequestBook,
        outgoing: list[tuple[str, RingMessage]],
    ) -> None:
        self._epoch = epoch
        self._admissions = admissions
        self._book = book
        self._outgoing = outgoing

    def take(self, reply: GrammarReply, now_ns: int) -> None:
        """Takes one answer."""
        match reply:
            case GrammarCompiled():
                self._admissions.on_grammar(reply.request_id, reply.error)
            case TokenMask():
                self._take_mask(reply, now_ns)
            case _:
                assert_never(reply)

    def on_lost(self, now_ns: int) -> None:
        """The process has ended: another one goes on, without whatever may have been the cause."""
        lost = self._book.grammars.lose_process()
        for request_id in lost.request_ids:
            self._admissions.on_grammar(request_id, COMPILE_LOST)
        for sequence_id in lost.sequence_ids:
            sample = self._book.samples.get(sequence_id)
            if sample is not None:
                self._fail(sample, now_ns, MASK_LOST, "invalid_request")

    def _take_mask(self, reply: TokenMask, now_ns: int) -> None:
        sample = self._book.samples.get(reply.sequence_id)
        if sample is None or not self._book.grammars.on_mask(reply):
            return
        if reply.error is not None:
            self._fail(sample, now_ns, reply.error, reply.error_code)
        elif reply.is_complete:
            self._end(sample, "stop", now_ns)

    def _fail(self, sample: OpenSample, now_ns: int, error: str, code: ErrorCode) -> None:
        param = self._book.grammars.param(sample.sequence_id)
        self._end(sample, "error", now_ns, RequestError(f"{param}: {error}", code, param))

    def _end(
        self,
        sample: OpenSample,
        reason: FinishReason,
        now_ns: int,
        error: RequestError | None = None,
    ) -> None:
        abort = AbortRequest(epoch=self._epoch, sequence_ids=[sample.sequence_id], reason=reason)
        self._outgoing.append(("scheduler", abort))
        sample.end_text()
        self._book.end_sample(sample, reason, now_ns, error=error)
