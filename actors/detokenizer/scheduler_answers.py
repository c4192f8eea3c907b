"""What the scheduler says of requests and samples beside their tokens."""

from typing import assert_never

from pillion.actors.detokenizer.request_book import RequestBook
from pillion.messages.requests import RequestClosed, RequestRejected, RequestScheduled
from pillion.runtime.errors import RequestError

SchedulerAnswer = RequestScheduled | RequestRejected | RequestClosed


class SchedulerAnswers:
    """Notes when samples begin, and ends what the scheduler ends."""

    def __init__(self, book: RequestBook) -> None:
        self._book = book

    def take(self, message: SchedulerAnswer, now_ns: int) -> None:
        """Takes one answer. What is not open any more is passed over."""
        match message:
            case RequestScheduled():
                self._on_scheduled(message, now_ns)
            case RequestRejected():
                self._on_rejected(message)
            case RequestClosed():
                self._on_closed(message, now_ns)
            case _:
                assert_never(message)

    def _on_scheduled(self, message: RequestScheduled, now_ns: int) -> None:
        sample = self._book.samples.get(message.sequence_id)
        if sample is None:
            return
        request = sample.request
        self._book.grammars.on_scheduled(message)
        if not sample.planned_ns:
            sample.planned_ns = message.planned_ns
            sample.num_cached_tokens = message.num_cached_tokens
        if not request.scheduled_ns:
            request.scheduled_ns = now_ns
            if request.num_cached_tokens is None:
                request.num_cached_tokens = message.num_cached_tokens
                request.miss_reason = message.miss_reason
            self._book.meter.scheduled(request, message.planned_ns)

    def _on_rejected(self, message: RequestRejected) -> None:
        request = self._book.requests.get(message.request_id)
        if request is not None:
            error = RequestError(
                message.message, message.code, retry_after_ms=message.retry_after_ms
            )
            self._book.fail(request, error, tell_scheduler=False)

    def _on_closed(self, message: RequestClosed, now_ns: int) -> None:
        sample = self._book.samples.get(message.sequence_id)
        if sample is not None:
            sample.end_text()
            error = None if message.message is None else RequestError(message.message)
            self._book.end_sample(sample, message.finish_reason, now_ns, error=error)
