"""One request's answer, put together from the chunks in which it comes."""

import time
from dataclasses import replace

from pillion.messages.codec import num_ids, unpack_floats, unpack_ids
from pillion.messages.text import GenerateChunk, RequestFailed, RequestTimes, TokenLogprobs
from pillion.runtime.client_requests import error_of, error_of_sample
from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.errors import RequestError
from pillion.runtime.outputs import (
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    ToolCall,
)


class RequestAssembly:
    """Joins chunks into `output` and checks that nothing is missing, doubled or late."""

    def __init__(
        self, request_id: str, num_samples: int, prompt: str | None, sent_ns: int | None = None
    ) -> None:
        """`sent_ns`: when the request was sent, if that is not now."""
        now = now_ns()
        self._started_ns = now if sent_ns is None else sent_ns
        since_s = (now - self._started_ns) / NS_PER_S
        self._metrics = RequestMetrics(arrival_time=time.time() - since_s)
        self._num_open = num_samples
        self._failed = False
        self._sample_error: RequestError | None = None  # the first one
        self.output = RequestOutput(
            request_id=request_id,
            prompt=prompt,
            outputs=[CompletionOutput(index=index) for index in range(num_samples)],
            metrics=self._metrics,
        )

    @property
    def finished(self) -> bool:
        """Whether every sample has ended."""
        return self._num_open == 0

    @property
    def ended(self) -> bool:
        """Whether the daemon will send nothing more."""
        return self._failed or self.finished

    def take(self, reply: object) -> RequestOutput:
        """As `add`, for whatever the daemon replied. Raises the error that a failed request ends with."""
        if isinstance(reply, RequestFailed):
            self._failed = True
            raise error_of(reply)
        if not isinstance(reply, GenerateChunk):
            raise RequestError(f"the daemon answered a generation with {type(reply).__name__}")
        new = self.add(reply)
        if reply.finish_reason is not None:
            if reply.finish_reason == "error":
                self._sample_error = self._sample_error or error_of_sample(reply)
            if self.finished and self._sample_error is not None:
                raise self._sample_error
        return new

    def add(self, chunk: GenerateChunk) -> RequestOutput:
        """Takes a chunk in and returns what is new as a RequestOutput of its own.

        Raises RequestError if the chunks do not join.
        """
        sample = self._sample_of(chunk)
        if sample.token_ids and _is_plain(chunk):
            return self._go_on(sample, chunk)
        new = CompletionOutput(
            index=chunk.index,
            text=chunk.text,
            token_ids=unpack_ids(chunk.token_ids),
            finish_reason=chunk.finish_reason,
            stop_reason=chunk.stop_reason,
            error=chunk.error,
            reasoning=chunk.reasoning,
        )
        if chunk.tool_calls:
            new.tool_calls = [
                ToolCall(call.index, call.id, call.name, call.arguments)
                for call in chunk.tool_calls
            ]
        if chunk.logprobs is not None:
            new.logprobs = logprob_dicts(chunk.logprobs)
            new.cumulative_logprob = sum(
                entry[token_id].logprob
                for entry, token_id in zip(new.logprobs, new.token_ids, strict=True)
            )
        self._join(sample, new)
        return self._describe(chunk, new)

    def _go_on(self, sample: CompletionOutput, chunk: GenerateChunk) -> RequestOutput:
        """Most chunks by far: text and tokens, neither a beginning nor an end."""
        token_ids = unpack_ids(chunk.token_ids)
        sample.text += chunk.text
        sample.token_ids += token_ids
        whole = self.output
        return RequestOutput(
            request_id=whole.request_id,
            prompt=whole.prompt,
            outputs=[CompletionOutput(chunk.index, chunk.text, token_ids)],
            metrics=self._metrics,
        )

    def _sample_of(self, chunk: GenerateChunk) -> CompletionOutput:
        if not 0 <= chunk.index < len(self.output.outputs):
            raise RequestError(
                f"the daemon answered sample {chunk.index} of {len(self.output.outputs)}"
            )
        sample = self.output.outputs[chunk.index]
        if sample.finished():
            raise RequestError(f"the daemon answered sample {chunk.index} after its end")
        have = len(sample.token_ids)
        if chunk.offset != have:
            kind = "are missing" if chunk.offset > have else "came twice"
            raise RequestError(
                f"tokens of sample {chunk.index} {kind}: the chunk starts at token {chunk.offset} and"
                f" {have} tokens were there"
            )
        if chunk.logprobs is not None and num_ids(chunk.logprobs.ranks) != num_ids(chunk.token_ids):
            raise RequestError(f"a chunk of sample {chunk.index} has logprobs of other tokens")
        return sample

    def _join(self, sample: CompletionOutput, new: CompletionOutput) -> None:
        sample.text += new.text
        sample.reasoning += new.reasoning
        for call in new.tool_calls:
            self._join_call(sample, call)
        sample.token_ids += new.token_ids
        sample.finish_reason = new.finish_reason
        sample.stop_reason = new.stop_reason
        sample.error = new.error
        if new.logprobs is not None:
            sample.logprobs = (sample.logprobs or []) + new.logprobs
            sample.cumulative_logprob = (sample.cumulative_logprob or 0.0) + (
                new.cumulative_logprob or 0.0
            )
        begins = self._metrics.first_token_s is None and bool(new.token_ids)
        if not begins and new.finish_reason is None:
            return
        elapsed_s = (now_ns() - self._started_ns) / NS_PER_S
        if begins:
            self._metrics.first_token_s = elapsed_s
        if new.finish_reason is not None:
            self._num_open -= 1
            if self.finished:
                self._metrics.finished_s = elapsed_s
                self.output.finished = True

    def _join_call(self, sample: CompletionOutput, new: ToolCall) -> None:
        if new.index == len(sample.tool_calls):
            sample.tool_calls.append(replace(new))
        elif new.index < len(sample.tool_calls):
            sample.tool_calls[new.index].arguments += new.arguments
        else:
            raise RequestError(
                f"the daemon sent a part of call {new.index} of sample {sample.index}, which has not begun"
            )

    def _describe(self, chunk: GenerateChunk, new: CompletionOutput) -> RequestOutput:
        whole = self.output
        delta = RequestOutput(
            request_id=whole.request_id,
            prompt=whole.prompt,
            outputs=[new],
            finished=whole.finished,
            metrics=self._metrics,
        )
        if chunk.prompt_token_ids is not None:
            whole.prompt_token_ids = delta.prompt_token_ids = unpack_ids(chunk.prompt_token_ids)
        if chunk.prompt_logprobs is not None:
            entries = logprob_dicts(chunk.prompt_logprobs)
            whole.prompt_logprobs = delta.prompt_logprobs = [entry or None for entry in entries]
        if chunk.times is not None:
            self._note_times(chunk.times)
        if chunk.usage is not None:
            whole.num_cached_tokens = delta.num_cached_tokens = chunk.usage.cached_tokens
            whole.cache_miss_reason = delta.cache_miss_reason = chunk.usage.cache_miss_reason
        return delta

    def _note_times(self, times: RequestTimes) -> None:
        metrics = self._metrics
        metrics.scheduled_s = times.scheduled_ms / 1000
        metrics.first_step_s = times.first_step_ms / 1000
        if metrics.first_token_s == metrics.finished_s:  # everything came at once
            metrics.first_token_s = times.first_token_ms / 1000


def _is_plain(chunk: GenerateChunk) -> bool:
    """Whether it brings text and tokens alone, if it is not its request's first one."""
    return (
        chunk.finish_reason is None
        and chunk.logprobs is None
        and not chunk.tool_calls
        and not chunk.reasoning
    )


def logprob_dicts(columns: TokenLogprobs) -> list[dict[int, Logprob]]:
    """A dict per token: the token itself first, then the likeliest ones; empty where there is nothing.

    Raises RequestError if the columns do not fit together.
    """
    width = 1 + columns.num_top
    ids, values = unpack_ids(columns.token_ids), unpack_floats(columns.logprobs)
    ranks = unpack_ids(columns.ranks)
    if not len(ids) == len(values) == len(columns.decoded) == len(ranks) * width:
        raise RequestError("the daemon sent logprobs whose columns differ in length")
    rows = []
    for row, rank in enumerate(ranks):
        entries: dict[int, Logprob] = {}
        for column in range(width):
            at = row * width + column
            if ids[at] >= 0:
                # The best of all has rank 1 and stands in column 1; column 0 is the token itself.
                entry = Logprob(values[at], column or rank, columns.decoded[at])
                entries.setdefault(ids[at], entry)
        rows.append(entries)
    return rows
