"""Tokens from the worker become the text of their samples: the path that every token takes."""

from collections import Counter
from itertools import islice
from typing import Final, NamedTuple

from pillion.actors.detokenizer.logprob_columns import cut_row, rows_by_index
from pillion.actors.detokenizer.open_requests import OpenSample
from pillion.actors.detokenizer.request_book import RequestBook
from pillion.messages.base import RingMessage
from pillion.messages.codec import unpack_ids, unpack_int64
from pillion.messages.ids import FINISH_ERROR, FINISH_REASONS, FINISH_STOP
from pillion.messages.requests import AbortRequest
from pillion.messages.steps import StepOutput, StepTimes
from pillion.runtime.errors import InvariantBroken, RequestError

# What a token costs in memory while its client is slow; each of its log-probabilities costs the same.
_TOKEN_BYTES: Final = 64


class _Step(NamedTuple):
    """What the rows of one step share."""

    output: StepOutput
    places: dict[int, int]  # row -> row of its log-probabilities
    now_ns: int
    earlier_ns: Counter[int]  # when its samples had their tokens before -> how many had them then


class StepRows:
    """Takes StepOutputs. Rows of samples that are over are ignored: the worker runs ahead of what ends them."""

    def __init__(
        self, epoch: int, book: RequestBook, outgoing: list[tuple[str, RingMessage]]
    ) -> None:
        self.vocab_size = 0
        self._epoch = epoch
        self._book = book
        self._outgoing = outgoing

    def take(self, output: StepOutput, now_ns: int) -> None:
        """Takes one step's rows.

        Raises InvariantBroken if tokens of a sample are missing or log-probabilities do not fit.
        """
        if output.prompt_logprobs:
            self._take_prompt_logprobs(output)
        logprobs = output.logprobs
        places = {} if logprobs is None else rows_by_index(logprobs)
        step = _Step(output, places, now_ns, Counter())
        samples = self._book.samples
        has_grammars = bool(self._book.grammars.num_followed)
        tokens = iter(unpack_ids(output.token_ids))
        rows = zip(
            unpack_int64(output.sequence_ids),
            unpack_ids(output.positions),
            unpack_ids(output.num_tokens),
            output.finish,
            strict=True,
        )
        for row, (sequence_id, position, count, code) in enumerate(rows):
            new = [next(tokens)] if count == 1 else list(islice(tokens, count))
            sample = samples.get(sequence_id)
            if sample is None:
                continue
            if sample.is_plain and not (code or has_grammars) and sample.is_next(position, count):
                self._take_plain(step, sample, new[0])
                continue
            new = self._unknown_tokens(sample, position, new)
            if new or code:
                self._take_row(step, row, sample, new, code)
        self._book.counters["steps"] += 1
        self._book.meter.step_ends(output.times, step.earlier_ns, now_ns)

    def _take_plain(self, step: _Step, sample: OpenSample, token_id: int) -> None:
        """Most rows by far: the next token of a sample of which text is wanted and nothing else."""
        if not 0 <= token_id < self.vocab_size:
            self._fail_beyond_vocabulary(sample, token_id)
            return
        step.earlier_ns[sample.last_token_ns] += 1
        sample.last_token_ns = step.now_ns
        sample.take_plain(token_id)
        request = sample.request
        if request.session.slow_since_ns is not None:
            request.session.backlog_bytes += _TOKEN_BYTES
        if request.stream and not sample.dirty:
            self._book.mark(sample)

    def _unknown_tokens(self, sample: OpenSample, position: int, new: list[int]) -> list[int]:
        """The tokens without those that are known already: a worker that was restarted says them again."""
        admitted = sample.request.admitted
        if admitted is None:
            raise InvariantBroken(
                f"tokens of sequence {sample.sequence_id}, which was not admitted"
            )
        known = len(admitted.prompt_token_ids) // 4 + len(sample.token_ids)
        if position == known or not new:
            return new
        if position > known:
            raise InvariantBroken(
                f"sequence {sample.sequence_id} has {known} tokens and gets the one at {position}"
            )
        return new[known - position :]

    def _take_row(
        self, step: _Step, row: int, sample: OpenSample, new: list[int], code: int
    ) -> None:
        request = sample.request
        for token_id in new:
            if not 0 <= token_id < self.vocab_size:
                self._fail_beyond_vocabulary(sample, token_id)
                return
        if request.params.logprobs is not None and new:
            self._take_logprobs(step, row, sample, len(new))
        if new:
            step.earlier_ns[sample.last_token_ns] += 1
            sample.last_token_ns = step.now_ns
            if not sample.first_token_ns:
                sample.first_token_ns = step.now_ns
                self._book.meter.got_first_token(sample)
                sample.note_plain()
        if not request.first_token_ns and new:
            request.first_token_ns = step.now_ns
            request.first_step_ns = _duration_ns(step.output.times)
            request.first_answered_ns = step.output.times.answered_ns if step.output.times else 0
            self._book.meter.answer_begins(request, step.now_ns)
        if self._take_tokens(sample, new, code, step.now_ns):
            return
        if code:
            self._finish(step, row, sample, code)
            return
        if request.session.slow_since_ns is not None:
            num_numbers = 1 if request.params.logprobs is None else 2 + request.params.logprobs
            request.session.backlog_bytes += len(new) * num_numbers * _TOKEN_BYTES
        self._book.mark(sample)
        if self._book.grammars.num_followed:
            self._book.grammars.advance(
                sample.sequence_id, len(new), sample.thinks, sample.num_thoughts
            )

    def _fail_beyond_vocabulary(self, sample: OpenSample, token_id: int) -> None:
        error = RequestError(
            f"the engine sampled token id {token_id}; the vocabulary has {self.vocab_size}"
        )
        self._book.fail(sample.request, error)

    def _take_tokens(self, sample: OpenSample, new: list[int], code: int, now_ns: int) -> bool:
        """Takes new tokens; True if a stop string, or the only call that is wanted, has ended the sample."""
        last = len(new) - 1
        for place, token_id in enumerate(new):
            if (
                code == FINISH_STOP
                and place == last
                and not sample.request.params.include_stop_str_in_output
            ):
                sample.take_silent(token_id)
                return False
            stop = sample.take(token_id)
            if stop is not None or sample.is_full:
                self._stop_at(sample, stop, not code, now_ns)
                return True
        return False

    def _finish(self, step: _Step, row: int, sample: OpenSample, code: int) -> None:
        stop = sample.end_text()
        if stop is not None:
            self._stop_at(sample, stop, False, step.now_ns)
            return
        reason = FINISH_REASONS[code] if code < len(FINISH_REASONS) else None
        if reason is None:
            raise InvariantBroken(f"finish code {code} in step {step.output.step_id}")
        stop_reason = None
        if code == FINISH_STOP and sample.token_ids:
            last = sample.token_ids[-1]
            stop_reason = last if last in sample.request.user_stop_ids else None
        error = None
        if code == FINISH_ERROR:
            error = RequestError(step.output.errors.get(row, "the engine gave no reason"))
        self._book.end_sample(sample, reason, step.now_ns, stop_reason, error)

    def _stop_at(self, sample: OpenSample, stop: str | None, still_runs: bool, now_ns: int) -> None:
        if still_runs:
            abort = AbortRequest(
                epoch=self._epoch, sequence_ids=[sample.sequence_id], reason="stop"
            )
            self._outgoing.append(("scheduler", abort))
        self._book.end_sample(sample, "stop", now_ns, stop)

    def _take_logprobs(self, step: _Step, row: int, sample: OpenSample, count: int) -> None:
        logprobs, place = step.output.logprobs, step.places.get(row)
        if logprobs is None or place is None or count != 1:
            raise InvariantBroken(
                f"step {step.output.step_id} lacks log-probabilities of sequence {sample.sequence_id}"
            )
        sample.logprobs.append(cut_row(logprobs, place, sample.request.params.logprobs or 0))

    def _take_prompt_logprobs(self, output: StepOutput) -> None:
        for part in output.prompt_logprobs:
            sample = self._book.samples.get(part.sequence_id)
            # The other samples have the same prompt; the first one's are enough.
            if sample is None or sample.index or sample.request.prompt_logprobs is None:
                continue
            table = sample.request.prompt_logprobs
            was_complete = table.complete
            table.add(part)
            if table.complete and not was_complete:
                self._book.mark_all(sample.request)


def _duration_ns(times: StepTimes | None) -> int:
    return 0 if times is None else times.prepare_ns + times.execute_ns + times.output_ns
