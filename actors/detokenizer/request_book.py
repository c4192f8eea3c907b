"""The open requests of a text edge: how they end, and how their output goes out in chunks."""

from typing import Final

from pillion.actors.detokenizer.client_sessions import ClientSessions, Session
from pillion.actors.detokenizer.grammars.desk import GrammarDesk
from pillion.actors.detokenizer.logprob_columns import join_rows
from pillion.actors.detokenizer.open_requests import OpenRequest, OpenSample
from pillion.actors.detokenizer.request_meter import RequestMeter
from pillion.actors.detokenizer.tokenizer import Tokenizer
from pillion.actors.detokenizer.traces import Traces
from pillion.messages.base import RingMessage
from pillion.messages.ids import ErrorCode, FinishReason, RequestId, SequenceId
from pillion.messages.requests import AbortRequest
from pillion.messages.text import GenerateChunk, RequestTimes, TokenLogprobs, Usage
from pillion.runtime.clock import NS_PER_MS
from pillion.runtime.errors import RequestError

_OUTCOMES: Final = ("finished", "aborted", "timeout", "failed", "refused")
_OUTCOME_OF: Final[dict[FinishReason, str]] = {
    "stop": "finished",
    "length": "finished",
    "tool_calls": "finished",
    "abort": "aborted",
    "timeout": "timeout",
    "error": "failed",
}
# Who was admitted and ends so has failed; others are refused.
_NOT_THE_CLIENTS: Final[tuple[ErrorCode, ...]] = ("internal", "unavailable")


class RequestBook:
    """Requests and samples by id. Everything that ends one passes through here, once."""

    def __init__(
        self,
        epoch: int,
        sessions: ClientSessions,
        outgoing: list[tuple[str, RingMessage]],
        *,
        traces_wanted: bool = False,
    ) -> None:
        self.requests: dict[RequestId, OpenRequest] = {}
        self.samples: dict[SequenceId, OpenSample] = {}
        self.tokenizer: Tokenizer | None = None
        self.grammars = GrammarDesk()
        # Every request received is counted once more when it ends, by its outcome.
        self.counters: dict[str, int | float] = {
            "requests_received": 0,
            **{f"requests_{outcome}": 0 for outcome in _OUTCOMES},
            "prompt_tokens": 0,
            "output_tokens": 0,
            "steps": 0,
            "grammar_processes_lost": 0,
        }
        self.meter = RequestMeter()
        self.traces = Traces(traces_wanted)
        self._epoch = epoch
        self._sessions = sessions
        self._outgoing = outgoing
        self._to_visit: list[Session] = []  # sessions with dirty samples

    def add(self, request: OpenRequest) -> None:
        """A new request, not yet known to the scheduler."""
        self.requests[request.request_id] = request
        request.samples = [OpenSample(request, index) for index in range(request.params.n)]
        request.num_running = request.num_unsent = request.params.n
        request.session.requests[request.client_request_id] = request

    def end_sample(
        self,
        sample: OpenSample,
        reason: FinishReason,
        now_ns: int,
        stop_reason: int | str | None = None,
        error: RequestError | None = None,
    ) -> None:
        """No token of this sample follows; its last chunk goes out at the next flush."""
        if sample.finish_reason is not None:
            return
        request = sample.request
        sample.end_parsing()
        if reason == "stop" and sample.parsed is not None and sample.parsed.calls_complete:
            reason = "tool_calls"
        sample.finish_reason, sample.stop_reason, sample.error = reason, stop_reason, error
        self.samples.pop(sample.sequence_id, None)
        self.grammars.close(sample.sequence_id)
        self.counters["output_tokens"] += len(sample.token_ids)
        self.meter.sample_ends(sample, reason, now_ns)
        request.num_running -= 1
        if sample.index == 0 and request.waits_for_prompt:
            request.prompt_logprobs = None  # they will never be complete
        if request.num_running == 0:
            request.finished_ns = now_ns
            self.meter.request_ends(request)
            self.traces.request_ends(request)
            del self.requests[request.request_id]
            outcomes = {
                _outcome(each.finish_reason, each.error)
                for each in request.samples
                if each.finish_reason
            }
            self.counters[f"requests_{max(outcomes, key=_OUTCOMES.index)}"] += 1
        self.mark_all(request)

    def end_request(self, request: OpenRequest, reason: FinishReason, now_ns: int) -> None:
        """Ends every open sample for this reason; the scheduler is told."""
        running = [sample for sample in request.samples if sample.finish_reason is None]
        self._abort(request, reason)
        for sample in running:
            sample.end_text()
            self.end_sample(sample, reason, now_ns)

    def fail(self, request: OpenRequest, error: RequestError, tell_scheduler: bool = True) -> None:
        """Ends a whole request with RequestFailed, behind what it has produced so far."""
        if tell_scheduler:
            self._abort(request, "error")
        session_id = request.session.session_id
        for sample in request.samples:
            if sample.dirty and request.stream:
                self._sessions.replies.append((session_id, self._next_chunk(sample)))
        self._sessions.refuse(session_id, request.client_request_id, error)
        refused = request.admitted is None or error.code not in _NOT_THE_CLIENTS
        self.counters["requests_refused" if refused else "requests_failed"] += 1
        self.traces.request_ends(request, error.code)
        self._forget(request, "error")

    def drop(self, request: OpenRequest) -> None:
        """The client is gone: nobody wants to hear of this request any more."""
        if request.num_running:
            self._abort(request, "abort")
            self.counters["requests_aborted"] += 1
            self.traces.request_ends(request)
        self._forget(request, "abort")

    def mark(self, sample: OpenSample) -> None:
        """The sample has something to send."""
        request = sample.request
        if (
            sample.dirty
            or sample.last_sent
            or (not request.stream and sample.finish_reason is None)
            or request.waits_for_prompt
        ):
            return
        sample.dirty = True
        session = request.session
        session.dirty.append(sample)
        if not session.listed:
            session.listed = True
            self._to_visit.append(session)

    def mark_all(self, request: OpenRequest) -> None:
        """Some condition has changed: marks every sample that has something to send."""
        for sample in request.samples:
            if (
                sample.has_news
                or sample.finish_reason is not None
                or len(sample.token_ids) > sample.num_sent
            ):
                self.mark(sample)

    def visit(self, session: Session) -> None:
        """The client reads again: what was merged for it goes out at the next flush."""
        if session.dirty and not session.listed:
            session.listed = True
            self._to_visit.append(session)

    def flush(self) -> None:
        """One chunk for each sample with something to send, unless its client does not keep up."""
        to_visit, self._to_visit = self._to_visit, []
        for session in to_visit:
            session.listed = False
            if session.slow_since_ns is not None:
                continue
            session.backlog_bytes = 0
            samples, session.dirty = session.dirty, []
            for sample in samples:
                if sample.dirty:
                    self._sessions.replies.append((session.session_id, self._next_chunk(sample)))

    def _next_chunk(self, sample: OpenSample) -> GenerateChunk:
        request = sample.request
        finished = sample.finish_reason is not None
        start, sample.num_sent = sample.num_sent, len(sample.token_ids)
        parts = sample.take_parts()
        sample.dirty = False
        if finished:
            sample.last_sent = True
            request.num_unsent -= 1
        elif request.first_sent and request.params.logprobs is None:
            return GenerateChunk(
                client_request_id=request.client_request_id,
                index=sample.index,
                text=parts.text,
                token_ids=sample.token_ids[start:].tobytes(),
                offset=start,
                reasoning=parts.reasoning,
                tool_calls=parts.tool_calls,
            )
        is_first, request.first_sent = not request.first_sent, True
        is_last = request.num_unsent == 0
        if is_last:
            request.session.requests.pop(request.client_request_id, None)
        admitted, error = request.admitted, sample.error
        return GenerateChunk(
            client_request_id=request.client_request_id,
            index=sample.index,
            text=parts.text,
            token_ids=sample.token_ids[start:].tobytes(),
            offset=start,
            finish_reason=sample.finish_reason,
            stop_reason=sample.stop_reason,
            logprobs=self._logprobs(sample),
            prompt_token_ids=(
                admitted.prompt_token_ids
                if is_first and request.return_prompt_token_ids and admitted is not None
                else None
            ),
            prompt_logprobs=self._prompt_logprobs(request) if is_first else None,
            usage=_usage(request) if is_last else None,
            times=_times(request) if is_last else None,
            error=None if error is None else str(error),
            reasoning=parts.reasoning,
            tool_calls=parts.tool_calls,
            num_cached_tokens=request.num_cached_tokens if is_first else None,
            cache_miss_reason=request.miss_reason if is_first else "",
            error_code="internal" if error is None else error.code,
            error_param=None if error is None else error.param,
        )

    def _logprobs(self, sample: OpenSample) -> TokenLogprobs | None:
        num_top = sample.request.params.logprobs
        if num_top is None or self.tokenizer is None:
            return None
        rows, sample.logprobs = sample.logprobs, []
        return join_rows(rows, num_top, self.tokenizer.token_text)

    def _prompt_logprobs(self, request: OpenRequest) -> TokenLogprobs | None:
        table, request.prompt_logprobs = request.prompt_logprobs, None
        if table is None or not table.complete or self.tokenizer is None:
            return None
        return table.columns(self.tokenizer.token_text)

    def _abort(self, request: OpenRequest, reason: FinishReason) -> None:
        if request.admitted is None:
            return
        ids = [sample.sequence_id for sample in request.samples if sample.finish_reason is None]
        if ids:
            self._outgoing.append(
                ("scheduler", AbortRequest(epoch=self._epoch, sequence_ids=ids, reason=reason))
            )

    def _forget(self, request: OpenRequest, reason: FinishReason) -> None:
        self.requests.pop(request.request_id, None)
        request.session.requests.pop(request.client_request_id, None)
        request.num_running = 0
        for sample in request.samples:
            sample.dirty = False
            if sample.finish_reason is None:
                self.counters["output_tokens"] += len(sample.token_ids)
                self.meter.sample_ends(sample, reason, sample.last_token_ns)
                sample.finish_reason = reason
            self.samples.pop(sample.sequence_id, None)
            self.grammars.close(sample.sequence_id)


def _outcome(reason: FinishReason, error: RequestError | None) -> str:
    if error is not None and error.code not in _NOT_THE_CLIENTS:
        return "refused"
    return _OUTCOME_OF[reason]


def _usage(request: OpenRequest) -> Usage:
    admitted = request.admitted
    return Usage(
        prompt_tokens=0 if admitted is None else len(admitted.prompt_token_ids) // 4,
        completion_tokens=sum(len(sample.token_ids) for sample in request.samples),
        cached_tokens=request.num_cached_tokens or 0,
        cache_miss_reason=request.miss_reason,
        reasoning_tokens=sum(sample.num_reasoning_tokens for sample in request.samples),
    )


def _times(request: OpenRequest) -> RequestTimes:
    def since_arrival(time_ns: int) -> float:
        return (time_ns - request.arrival_ns) / NS_PER_MS if time_ns else 0.0

    return RequestTimes(
        scheduled_ms=since_arrival(request.scheduled_ns),
        first_token_ms=since_arrival(request.first_token_ns),
        finished_ms=since_arrival(request.finished_ns),
        first_step_ms=request.first_step_ns / NS_PER_MS,
    )
