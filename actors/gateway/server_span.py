"""The span of one HTTP request. It needs no tracing library: the text edge exports it with its own spans."""

from dataclasses import dataclass

from pillion.actors.gateway.exchange import Exchange
from pillion.messages.text import HttpSpan, TraceContext
from pillion.runtime.clock import now_ns
from pillion.runtime.trace_context import SpanId, new_trace, parse_traceparent


@dataclass(frozen=True, slots=True)
class ServerSpan:
    """Begins when it is made."""

    own: SpanId
    parent: SpanId | None
    tracestate: str
    started_ns: int

    @classmethod
    def of(cls, exchange: Exchange) -> "ServerSpan":
        """Of this request: under the span that its headers name, or the first of a trace."""
        parent = parse_traceparent((exchange.header(b"traceparent") or b"").decode("latin-1"))
        own = new_trace() if parent is None else parent.child()
        state = exchange.header(b"tracestate") if parent is not None else None
        return cls(own, parent, (state or b"").decode("latin-1"), now_ns())

    @property
    def context(self) -> TraceContext:
        """For the generations that the request leads to."""
        return TraceContext(
            traceparent=self.own.traceparent,
            tracestate=self.tracestate,
            begins_here=self.parent is None,
        )

    def end(self, exchange: Exchange, method: str, route: str) -> HttpSpan:
        """What the text edge is to export."""
        return HttpSpan(
            traceparent=self.own.traceparent,
            tracestate=self.tracestate,
            parent_id=None if self.parent is None else f"{self.parent.span_id:016x}",
            started_ns=self.started_ns,
            ended_ns=now_ns(),
            method=method,
            route=route,
            status=exchange.status,
            request_id=exchange.request_id,
        )
