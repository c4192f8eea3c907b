"""A request's spans: what it was and where its time went. Times are monotonic; nothing here needs a tracing library.

Names of attributes are those of OpenTelemetry's semantic conventions for generative AI (schema 1.44) where there are
any, else begin with "pillion.".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pillion.actors.detokenizer.open_requests import OpenRequest
from pillion.actors.detokenizer.traces import EndedRequest
from pillion.messages.sampling import SamplingParams
from pillion.runtime.clock import NS_PER_S

Value = str | bool | int | float | Sequence[str]


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """One span and those beneath it."""

    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None
    children: Sequence["SpanRecord"] = ()


def request_span(ended: EndedRequest, model: str, now_ns: int) -> SpanRecord:
    """Of a request that has ended by now."""
    request = ended.request
    operation = "chat" if request.is_chat else "text_completion"
    end_ns = request.finished_ns or now_ns
    error = ended.error
    if error is None:
        error = next((sample.error.code for sample in request.samples if sample.error), None)
    return SpanRecord(
        name=f"{operation} {model}",
        start_ns=request.arrival_ns,
        end_ns=end_ns,
        attributes={
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "pillion",
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
            **_asked(request.params, request.stream),
            **_answered(request),
            **({"error.type": error} if error else {}),
        },
        error=error,
        children=_phases(request, end_ns),
    )


def _asked(params: SamplingParams, stream: bool) -> dict[str, Value]:
    asked: dict[str, Value | None] = {
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k if params.top_k > 0 else None,
        "gen_ai.request.frequency_penalty": params.frequency_penalty,
        "gen_ai.request.presence_penalty": params.presence_penalty,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.stop_sequences": params.stop_strings or None,
        "gen_ai.request.choice.count": params.n if params.n != 1 else None,
        "gen_ai.request.stream": stream,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _answered(request: OpenRequest) -> dict[str, Value]:
    answered: dict[str, Value] = {
        "gen_ai.usage.output_tokens": sum(len(sample.token_ids) for sample in request.samples),
        "gen_ai.response.finish_reasons": [
            sample.finish_reason for sample in request.samples if sample.finish_reason
        ],
        "pillion.request_id": request.client_request_id,
        "pillion.priority": request.priority,
    }
    if request.admitted is not None:
        answered["gen_ai.usage.input_tokens"] = len(request.admitted.prompt_token_ids) // 4
    if request.num_cached_tokens is not None:
        answered["gen_ai.usage.cache_read.input_tokens"] = request.num_cached_tokens
        answered["pillion.cache_miss_reason"] = request.miss_reason
    if request.first_token_ns:
        seconds = (request.first_token_ns - request.arrival_ns) / NS_PER_S
        answered["gen_ai.response.time_to_first_chunk"] = seconds
    return answered


def _phases(request: OpenRequest, end_ns: int) -> list[SpanRecord]:
    """One after the other, as far as the request came."""
    borders = [
        ("admission", request.arrival_ns),
        ("queue", request.admitted_ns),
        ("prefill", request.planned_ns),
        ("decode", request.first_token_ns),
    ]
    reached = [(name, start_ns) for name, start_ns in borders if start_ns]
    ends = [*(start_ns for _, start_ns in reached[1:]), end_ns]
    return [
        SpanRecord(name, start_ns, phase_end_ns, children=_step(request, name))
        for (name, start_ns), phase_end_ns in zip(reached, ends, strict=True)
    ]


def _step(request: OpenRequest, phase: str) -> list[SpanRecord]:
    """The worker's own time for the step that gave the first token."""
    answered_ns = request.first_answered_ns
    if phase != "prefill" or not answered_ns:
        return []
    return [SpanRecord("step", answered_ns - request.first_step_ns, answered_ns)]
