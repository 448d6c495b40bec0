"""Spans as OTLP/HTTP JSON, through OpenTelemetry's data model and encoder. Pure; imported only where OTLP is on."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.json.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanKind, TraceFlags
from opentelemetry.trace import SpanContext as OtelSpanContext

from superfluid.telemetry.spans import FinishedSpan, SpanContext
from superfluid.version import __version__

_SCOPE = InstrumentationScope("superfluid.operational", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_RENAMED = {"session": "superfluid.session_id"}


class SpanEncoder:
    """Bodies for ``/v1/traces`` of one resource: ``service_name`` on the machine called ``node``."""

    def __init__(self, service_name: str, node: str) -> None:
        self._resource = Resource(
            {
                "service.name": service_name,
                "service.version": __version__,
                "host.name": node,
                "superfluid.signal": "operational",
                "superfluid.content_included": False,
            }
        )

    def encode(self, spans: Sequence[FinishedSpan]) -> bytes:
        """One request with all ``spans``."""
        return encode_spans([self._readable(span) for span in spans]).to_json().encode()

    def _readable(self, span: FinishedSpan) -> ReadableSpan:
        attributes: dict[str, Any] = {"superfluid.target": span.target}
        attributes |= {_RENAMED.get(name, f"superfluid.{name}"): value for name, value in span.attributes.items()}
        attributes["superfluid.model"] = span.model
        return ReadableSpan(
            name=span.name,
            context=_context(span.context),
            parent=None if span.parent is None else _context(span.parent),
            resource=self._resource,
            attributes=attributes,
            links=[Link(_context(link)) for link in span.links],
            kind=SpanKind.INTERNAL,
            start_time=span.started_unix_ns,
            end_time=max(span.started_unix_ns, span.ended_unix_ns),
            instrumentation_scope=_SCOPE,
        )


def _context(context: SpanContext) -> OtelSpanContext:
    return OtelSpanContext(context.trace_id, context.span_id, is_remote=False, trace_flags=_SAMPLED)
