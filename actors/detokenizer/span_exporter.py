"""Sends spans to an OpenTelemetry collector. Only a daemon that traces imports this."""

import logging
import threading
import time
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

import pillion
from pillion.actors.detokenizer.request_spans import SpanRecord, request_span
from pillion.actors.detokenizer.traces import Traces
from pillion.messages.text import HttpSpan, TraceContext
from pillion.runtime.clock import now_ns as clock_ns
from pillion.runtime.trace_context import SAMPLED, SpanId, new_trace, parse_traceparent

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
CLOCK_SET_NS: Final = 1_000_000
LAST_EXPORT_S: Final = 1.0  # that the end of the process waits for

_SCOPE: Final = InstrumentationScope("pillion", pillion.__version__, SCHEMA_URL)


def otlp_exporter(endpoint: str) -> SpanExporter:
    """To a collector's traces, by OTLP over HTTP."""
    return OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")


class RequestTracer:
    """Makes spans of what has ended. A thread of the library sends them in batches.

    The usual variables (OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, OTEL_BSP_..., OTEL_EXPORTER_OTLP_HEADERS) are heeded.
    """

    def __init__(self, exporter: SpanExporter, model: str) -> None:
        # It warns of each tracestate that it cannot read, and those are the clients'.
        logging.getLogger("opentelemetry.trace.span").setLevel(logging.ERROR)
        self._model = model
        self._offset_ns = time.time_ns() - clock_ns()
        own = Resource({"service.name": "pillion"}, SCHEMA_URL)
        self._resource = Resource.get_empty().merge(own).merge(OTELResourceDetector().detect())
        # It knows the sampler that the environment asks for.
        self._sampler = TracerProvider(resource=self._resource, shutdown_on_exit=False).sampler
        self._processor = BatchSpanProcessor(exporter)

    def export(self, traces: Traces, now_ns: int) -> None:
        """Takes all that has ended by now, and clears it."""
        if not (traces.requests or traces.http):
            return
        offset_ns = self._clock_offset()
        for ended in traces.requests:
            record = request_span(ended, self._model, now_ns)
            self._export_request(record, ended.request.trace, offset_ns)
        for span in traces.http:
            # One with times that cannot be encoded would cost its whole batch.
            if 0 <= span.started_ns <= span.ended_ns <= now_ns:
                self._export_http(span, offset_ns)
        traces.requests.clear()
        traces.http.clear()

    def _clock_offset(self) -> int:
        """From monotonic time to that of the day: the same for all spans until somebody sets the clock."""
        offset_ns = time.time_ns() - clock_ns()
        if abs(offset_ns - self._offset_ns) > CLOCK_SET_NS:
            self._offset_ns = offset_ns
        return self._offset_ns

    def close(self) -> None:
        """Sends what is left, as far as the collector takes it at once."""
        ending = threading.Thread(target=self._processor.shutdown, daemon=True)
        ending.start()
        ending.join(LAST_EXPORT_S)

    def _export_request(
        self, record: SpanRecord, trace: TraceContext | None, offset_ns: int
    ) -> None:
        above = None if trace is None else parse_traceparent(trace.traceparent)
        parent = None if above is None else _context(above, trace.tracestate if trace else "")
        own = new_trace() if above is None else above.child()
        decides = None if trace is not None and trace.begins_here else parent
        if self._is_sampled(own, decides, record.name):
            self._emit(record, own, parent, offset_ns)

    def _export_http(self, span: HttpSpan, offset_ns: int) -> None:
        own = parse_traceparent(span.traceparent)
        if own is None:
            return
        parent = None
        if span.parent_id is not None:
            above = parse_traceparent(f"00-{own.trace_id:032x}-{span.parent_id}-{own.flags:02x}")
            parent = None if above is None else _context(above, span.tracestate)
        record = SpanRecord(
            name=f"{span.method} {span.route}",
            start_ns=span.started_ns,
            end_ns=span.ended_ns,
            attributes={
                "http.request.method": span.method,
                "http.route": span.route,
                "http.response.status_code": span.status,
                "pillion.http_request_id": span.request_id,
            },
            error=str(span.status) if span.status >= 500 else None,
        )
        if self._is_sampled(own, parent, record.name):
            self._emit(record, own, parent, offset_ns, SpanKind.SERVER)

    def _is_sampled(self, own: SpanId, parent: SpanContext | None, name: str) -> bool:
        context = None if parent is None else set_span_in_context(NonRecordingSpan(parent))
        decision = self._sampler.should_sample(context, own.trace_id, name).decision
        return decision is Decision.RECORD_AND_SAMPLE

    def _emit(
        self,
        record: SpanRecord,
        own: SpanId,
        parent: SpanContext | None,
        offset_ns: int,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        """This span and all beneath it."""
        context = _context(SpanId(own.trace_id, own.span_id, own.flags | SAMPLED), "")
        status = Status() if record.error is None else Status(StatusCode.ERROR, record.error)
        self._processor.on_end(
            ReadableSpan(
                name=record.name,
                context=context,
                parent=parent,
                resource=self._resource,
                attributes=dict(record.attributes),
                kind=kind,
                status=status,
                start_time=record.start_ns + offset_ns,
                end_time=max(record.start_ns, record.end_ns) + offset_ns,
                instrumentation_scope=_SCOPE,
            )
        )
        for child in record.children:
            self._emit(child, own.child(), context, offset_ns)


def _context(span: SpanId, tracestate: str) -> SpanContext:
    """As the library names it; what comes from elsewhere may have a state."""
    state = TraceState.from_header([tracestate]) if tracestate else None
    return SpanContext(span.trace_id, span.span_id, True, TraceFlags(span.flags), state)
