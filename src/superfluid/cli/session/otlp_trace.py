"""A session as an agent's trace: one OTLP trace request in JSON. Pure. No text of the session is on any span.

session                          the whole log
├── generate                     one reply, from its opening to its end
│   └── tool_use                 a call the model made in it, until it was settled
└── tool_use                     a call that came after its reply's end
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from superfluid.domain.events import (
    Event,
    Generated,
    GenerationPrompt,
    ToolExpired,
    ToolOutcome,
    ToolOutcomeCode,
    ToolResult,
    ToolUse,
)
from superfluid.telemetry.trace_ids import ROOT_EVENT, event_span_id, session_trace_id, store_namespace

SEMCONV_VERSION = "1.36.0"

_INTERNAL, _CLIENT = 1, 3


class _Reply(Struct):
    """A reply that is being read."""

    start: Event
    tokens: int = 0


class _Call(Struct, frozen=True):
    """A tool call and the event id of the span it was made in."""

    use: Event
    name: str
    parent: int


class SessionTrace:
    """The spans of one session; ``request`` wraps them. ``store_id`` ``None`` leaves the store out of the ids."""

    def __init__(self, session: int, events: Sequence[Event], *, store_id: bytes | None, model: str = "") -> None:
        self._session = session
        self._model = model
        self._namespace = store_namespace(store_id)
        self._reply: _Reply | None = None
        self._calls: dict[int, _Call] = {}
        self.spans: list[dict[str, Any]] = [self._root(events)]
        for event in events:
            self._take(event)
        self.spans += [self._open_call(call) for call in self._calls.values()]

    def request(self, *, scope_version: str, has_content: bool) -> dict[str, Any]:
        """The body of an export request."""
        resource = [
            _text("service.name", "superfluid"),
            _text("superfluid.semconv_version", SEMCONV_VERSION),
            _flag("superfluid.content_included", is_set=has_content),
        ]
        scope = {"name": "superfluid.session", "version": scope_version}
        return {
            "resourceSpans": [
                {"resource": {"attributes": resource}, "scopeSpans": [{"scope": scope, "spans": self.spans}]}
            ]
        }

    # ----

    def _take(self, event: Event) -> None:
        match event.body:
            case GenerationPrompt():
                self._reply = _Reply(event)
            case Generated(span, _, _, finish):
                self._reply = self._reply or _Reply(event)
                self._reply.tokens += len(span)
                if finish:
                    self.spans.append(self._generate(self._reply, event, finish))
                    self._reply = None
            case ToolUse(name):
                parent = ROOT_EVENT if self._reply is None else self._reply.start.event_id
                self._calls[event.event_id] = _Call(event, name, parent)
            case ToolResult(call_id):
                self._settle(call_id, event, "result")
            case ToolExpired(call_id):
                self._settle(call_id, event, "expired")
            case ToolOutcome(call_id, outcome):
                is_failure = outcome == ToolOutcomeCode.FAILED
                self._settle(call_id, event, "failed" if is_failure else "cancelled")
            case _:
                pass

    def _settle(self, call_id: int, end: Event, outcome: str) -> None:
        call = self._calls.pop(call_id, None)
        if call is not None:
            parent = _number("superfluid.parent_event_id", call.parent)
            self.spans.append(self._tool_use(call, end, outcome, [parent]))

    def _open_call(self, call: _Call) -> dict[str, Any]:
        return self._tool_use(call, call.use, "open", [])

    # ---- spans

    def _root(self, events: Sequence[Event]) -> dict[str, Any]:
        times = [event.ts_unix_ms for event in events if event.ts_unix_ms]
        attributes = [
            *self._place(ROOT_EVENT),
            _text("superfluid.timing", "wall_clock_ms" if times else "unavailable"),
        ]
        return self._span("session", ROOT_EVENT, _INTERNAL, times[0] if times else 0, max(times, default=0), attributes)

    def _generate(self, reply: _Reply, end: Event, finish: int) -> dict[str, Any]:
        attributes = [
            *self._place(reply.start.event_id),
            _number("superfluid.parent_event_id", ROOT_EVENT),
            _number("superfluid.epoch", reply.start.epoch),
            _number("superfluid.finish", finish),
            _text("gen_ai.system", "superfluid"),
            _text("gen_ai.request.model", self._model),
            _number("gen_ai.usage.output_tokens", reply.tokens),
        ]
        start = reply.start
        span = self._span("generate", start.event_id, _INTERNAL, start.ts_unix_ms, end.ts_unix_ms, attributes)
        return self._below(ROOT_EVENT, span)

    def _tool_use(self, call: _Call, end: Event, outcome: str, parent: list[dict[str, Any]]) -> dict[str, Any]:
        use = call.use
        attributes = [
            *self._place(use.event_id),
            *parent,
            _number("superfluid.epoch", use.epoch),
            _text("gen_ai.tool.name", call.name),
            _text("gen_ai.tool.call.id", str(use.event_id)),
            _text("superfluid.tool.outcome", outcome),
        ]
        span = self._span("tool_use", use.event_id, _CLIENT, use.ts_unix_ms, end.ts_unix_ms, attributes)
        return self._below(call.parent, span)

    def _place(self, event_id: int) -> list[dict[str, Any]]:
        return [_number("superfluid.session_id", self._session), _number("superfluid.event_id", event_id)]

    def _span(
        self, name: str, event_id: int, kind: int, start_ms: int, end_ms: int, attributes: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return {
            "traceId": f"{session_trace_id(self._namespace, self._session):032x}",
            "spanId": self._span_id(event_id),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": str(start_ms * 1_000_000),
            # Clocks are set back now and then; a span that ends before it starts is refused by collectors.
            "endTimeUnixNano": str(max(start_ms, end_ms) * 1_000_000),
            "attributes": attributes,
        }

    def _below(self, parent: int, span: dict[str, Any]) -> dict[str, Any]:
        return {**span, "parentSpanId": self._span_id(parent)}

    def _span_id(self, event_id: int) -> str:
        return f"{event_span_id(self._namespace, self._session, event_id):016x}"


def _text(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def _number(key: str, value: int) -> dict[str, Any]:
    return {"key": key, "value": {"intValue": str(value)}}


def _flag(key: str, *, is_set: bool) -> dict[str, Any]:
    return {"key": key, "value": {"boolValue": is_set}}
