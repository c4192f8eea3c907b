"""What the text edge hears of its requests, besides their tokens."""

from pillion.actors.scheduler.sequence import Sequence
from pillion.actors.scheduler.term import Term
from pillion.messages.base import RingMessage
from pillion.messages.ids import ErrorCode, FinishReason, RequestId
from pillion.messages.requests import RequestClosed, RequestRejected, RequestScheduled


class EdgeReports:
    """Words of one term. Writes: `outgoing`."""

    def __init__(self, term: Term, outgoing: list[tuple[str, RingMessage]]) -> None:
        self._term = term
        self._outgoing = outgoing

    def scheduled(self, sequence: Sequence, num_cached_tokens: int, now_ns: int) -> None:
        """It has a slot, by a plan of this moment."""
        self._send(
            RequestScheduled(
                epoch=self._term.epoch,
                sequence_id=sequence.sequence_id,
                num_cached_tokens=num_cached_tokens,
                miss_reason=sequence.miss_reason,
                worker_epoch=self._term.worker_epoch,
                slot=sequence.slot,
                generation=sequence.generation,
                planned_ns=now_ns,
            )
        )

    def closed(self, sequence: Sequence, outcome: FinishReason, message: str | None) -> None:
        """It has ended for a reason that the edge does not know."""
        self._send(
            RequestClosed(
                epoch=self._term.epoch,
                sequence_id=sequence.sequence_id,
                finish_reason=outcome,
                message=message,
                worker_epoch=self._term.worker_epoch,
            )
        )

    def rejected(self, request_id: RequestId, code: ErrorCode, message: str) -> None:
        """The request is not taken."""
        self._send(
            RequestRejected(
                epoch=self._term.epoch,
                request_id=request_id,
                code=code,
                message=message,
                worker_epoch=self._term.worker_epoch,
            )
        )

    def _send(self, message: RingMessage) -> None:
        self._outgoing.append(("detokenizer", message))
