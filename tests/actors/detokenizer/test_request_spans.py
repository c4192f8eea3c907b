"""The spans of requests, and which of them leave."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from edge_rig import EdgeRig
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.schemas import Schemas

from pillion.actors.detokenizer.request_spans import SpanRecord, request_span
from pillion.actors.detokenizer.span_exporter import SCHEMA_URL, RequestTracer
from pillion.actors.detokenizer.text_model import TextModel
from pillion.messages.requests import RequestRejected, RequestScheduled
from pillion.messages.sampling import SamplingParams
from pillion.messages.steps import StepTimes
from pillion.messages.text import CancelRequest, HttpSpan, TraceContext

MS = 1_000_000
TRACE = "1" * 32
PARENT = "2" * 16


class Memory(SpanExporter):
    """Keeps what is exported."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS


@pytest.fixture
def rig(text_model: TextModel) -> EdgeRig:
    rig = EdgeRig(text_model, otlp_endpoint="http://collector")
    rig.connect()
    return rig


def record(rig: EdgeRig) -> SpanRecord:
    (ended,) = rig.edge.traces.requests
    return request_span(ended, "m", rig.now_ns)


def context(flags: str = "01", **fields: Any) -> TraceContext:
    return TraceContext(traceparent=f"00-{TRACE}-{PARENT}-{flags}", **fields)


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[ReadableSpan]]:
    """The spans that leave, with the sampler of this name."""

    def export(rig: EdgeRig, sampler: str = "parentbased_always_on") -> list[ReadableSpan]:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
        memory = Memory()
        tracer = RequestTracer(memory, "m")
        tracer.export(rig.edge.traces, rig.now_ns)
        tracer.close()
        assert not rig.edge.traces.requests
        assert not rig.edge.traces.http
        return memory.spans

    return export


def test_phases_follow_one_another(rig: EdgeRig) -> None:
    params = SamplingParams(max_tokens=2, seed=3, stop=["!"], n=1, temperature=0.5)
    admitted = rig.generate(messages=[{"role": "user", "content": "x"}], sampling_params=params)
    start_ns = rig.now_ns
    rig.now_ns += MS
    scheduled = RequestScheduled(
        epoch=1,
        sequence_id=admitted.request_id,
        num_cached_tokens=4,
        miss_reason="diverged",
        planned_ns=rig.now_ns,
    )
    rig.ring(scheduled)
    rig.now_ns += MS
    place = len(admitted.prompt_token_ids) // 4
    times = StepTimes(
        prepare_ns=1000,
        execute_ns=2000,
        output_ns=3000,
        num_prefill_tokens=1,
        num_decode_tokens=0,
        answered_ns=rig.now_ns - 100,
    )
    rig.step((admitted.request_id, place, [97], 0), times=times)
    rig.now_ns += MS
    rig.step((admitted.request_id, place + 1, [98], 2))
    span = record(rig)
    assert (span.name, span.start_ns, span.end_ns) == ("chat m", start_ns, start_ns + 3 * MS)
    phases = [
        (each.name, each.start_ns - start_ns, each.end_ns - start_ns) for each in span.children
    ]
    assert phases == [
        ("admission", 0, 0),
        ("queue", 0, MS),
        ("prefill", MS, 2 * MS),
        ("decode", 2 * MS, 3 * MS),
    ]
    (step,) = span.children[2].children
    assert (step.name, step.end_ns - step.start_ns) == ("step", 6000)
    assert step.end_ns == start_ns + 2 * MS - 100
    attributes = span.attributes
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 4
    assert attributes["gen_ai.request.stop_sequences"] == ["!"]
    assert attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert attributes["gen_ai.response.time_to_first_chunk"] == pytest.approx(0.002)
    assert attributes["pillion.cache_miss_reason"] == "diverged"
    assert span.error is None


def test_attributes_are_those_of_the_conventions(rig: EdgeRig) -> None:
    params = SamplingParams(n=2, max_tokens=1, top_k=3, stop=["x"], seed=1)
    admitted = rig.generate(sampling_params=params)
    for index in range(2):
        rig.run(admitted, [97], index=index)
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {name for name in record(rig).attributes if name.startswith("gen_ai.")}
    assert len(used) > 10
    assert used <= known
    assert any(schema.value == SCHEMA_URL for schema in Schemas)


def test_a_request_that_never_ran_ends_where_it_was(rig: EdgeRig) -> None:
    admitted = rig.generate()
    rig.now_ns += MS
    rejected = RequestRejected(
        epoch=1, request_id=admitted.request_id, code="overloaded", message="full"
    )
    rig.ring(rejected)
    span = record(rig)
    assert [phase.name for phase in span.children] == ["admission", "queue"]
    assert span.children[-1].end_ns == rig.now_ns
    assert (span.error, span.attributes["error.type"]) == ("overloaded", "overloaded")
    assert span.attributes["gen_ai.response.finish_reasons"] == ["error"]


def test_a_cancelled_request_is_no_error(rig: EdgeRig) -> None:
    rig.generate()
    rig.send(1, CancelRequest(client_request_id="r"))
    span = record(rig)
    assert span.error is None
    assert span.attributes["gen_ai.response.finish_reasons"] == ["abort"]


def test_nothing_is_kept_by_a_daemon_that_does_not_trace(text_model: TextModel) -> None:
    rig = EdgeRig(text_model)
    rig.connect()
    rig.run(rig.generate(trace=context()), [97])
    rig.send(1, http_span())
    assert not rig.edge.traces.requests
    assert not rig.edge.traces.http


def http_span(**fields: Any) -> HttpSpan:
    return HttpSpan(
        **{
            "traceparent": f"00-{TRACE}-{'3' * 16}-01",
            "started_ns": 1,
            "ended_ns": 2,
            "method": "POST",
            "route": "/v1/completions",
            "status": 500,
            "request_id": "mine",
            **fields,
        }
    )


def test_spans_hang_together(rig: EdgeRig, exported: Callable[..., list[ReadableSpan]]) -> None:
    rig.run(rig.generate(trace=context(tracestate="a=b")), [97])
    rig.send(1, http_span(parent_id=PARENT))
    spans = {span.name: span for span in exported(rig)}
    request, http = spans["text_completion m"], spans["POST /v1/completions"]
    for span in (request, http):
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == PARENT
        assert span.context is not None
        assert f"{span.context.trace_id:032x}" == TRACE
    assert request.parent is not None
    assert request.parent.trace_state.get("a") == "b"
    assert request.context is not None
    phases = [span for span in spans.values() if span.parent == request.context]
    assert {span.name for span in phases} == {"admission", "queue", "decode"}
    assert not http.status.is_ok
    assert request.status.is_unset


@pytest.mark.parametrize(
    ("sampler", "trace", "is_sampled"),
    [
        ("parentbased_always_on", context("00"), False),
        ("parentbased_always_off", context("01"), True),
        ("parentbased_always_off", context("01", begins_here=True), False),
        ("parentbased_always_off", TraceContext(traceparent="00-nonsense"), False),
        ("parentbased_always_off", None, False),
        ("always_on", None, True),
    ],
)
def test_whether_a_trace_is_sampled(
    rig: EdgeRig,
    exported: Callable[..., list[ReadableSpan]],
    sampler: str,
    trace: TraceContext | None,
    is_sampled: bool,
) -> None:
    rig.run(rig.generate(trace=trace), [97])
    assert bool(exported(rig, sampler)) == is_sampled


def test_an_http_span_that_begins_a_trace_is_sampled_like_its_requests(
    rig: EdgeRig, exported: Callable[..., list[ReadableSpan]]
) -> None:
    rig.send(1, http_span())
    assert exported(rig, "parentbased_always_off") == []
    rig.send(1, http_span())
    (span,) = exported(rig)
    assert span.parent is None


@pytest.mark.parametrize(("started_ns", "ended_ns"), [(-(2**63), 2), (2, 1), (1, 2**63 - 1)])
def test_an_http_span_of_impossible_times_is_left_out(
    rig: EdgeRig,
    exported: Callable[..., list[ReadableSpan]],
    started_ns: int,
    ended_ns: int,
) -> None:
    rig.send(1, http_span(started_ns=started_ns, ended_ns=ended_ns))
    rig.send(1, http_span(route="/v1/models"))
    assert [span.name for span in exported(rig)] == ["POST /v1/models"]


def test_a_state_that_cannot_be_read_is_nothing_to_warn_of(
    rig: EdgeRig, exported: Callable[..., list[ReadableSpan]], caplog: pytest.LogCaptureFixture
) -> None:
    rig.run(rig.generate(trace=context(tracestate="no state")), [97])
    assert exported(rig)
    assert not caplog.records
