"""A session's records as ``session export`` writes them: one object each, without content unless asked for. Pure."""

from typing import Any, assert_never

from superfluid.cli.session.redaction import redact
from superfluid.domain import events
from superfluid.domain.events import Body, Event, GenParams
from superfluid.native.json_codec import JsonCodec
from superfluid.native.schema import describe

_ToolCallBody = (
    events.ToolUse
    | events.ToolResult
    | events.ToolParseFailure
    | events.ToolExpired
    | events.ToolOutcome
    | events.ToolReconciliation
    | events.ToolCancelRequested
    | events.ToolLease
)
_OriginBody = events.Created | events.Forked | events.Rebased | events.Rerooted | events.Purged
_SpanBody = events.Appended | events.Message | events.GenerationPrompt | events.Generated | events.Block
_StandingBody = (
    events.EpochBump
    | events.GenerationFingerprint
    | events.MetaUpdated
    | events.QosSet
    | events.Pinned
    | events.PermissionRequest
    | events.PermissionResponse
)


def exported_event(session: int, event: Event, *, has_content: bool) -> dict[str, Any]:
    """One line of the export, keys in their order. Without ``has_content`` a text is the number of its bytes."""
    return {
        "session": session,
        "event_id": event.event_id,
        "epoch": event.epoch,
        "ts_unix_ms": event.ts_unix_ms,
        "event": _Exporter(has_content=has_content).body(event.body),
    }


class _Exporter:
    def __init__(self, *, has_content: bool) -> None:
        self._has_content = has_content

    def content(self, text: str) -> Any:
        return redact(text) if self._has_content else {"bytes": len(text.encode(errors="replace"))}

    def optional(self, text: str | None) -> Any:
        return None if text is None else self.content(text)

    def body(self, body: Body) -> dict[str, Any]:
        match body:
            case events.Created() | events.Forked() | events.Rebased() | events.Rerooted() | events.Purged():
                return _origin(body)
            case events.Appended() | events.Message() | events.GenerationPrompt() | events.Generated() | events.Block():
                return self._span(body)
            case (
                events.EpochBump()
                | events.GenerationFingerprint()
                | events.MetaUpdated()
                | events.QosSet()
                | events.Pinned()
                | events.PermissionRequest()
                | events.PermissionResponse()
            ):
                return self._standing(body)
            case _:
                return self._tool_call(body)

    def _span(self, body: _SpanBody) -> dict[str, Any]:
        tokens = len(body.span)
        match body:
            case events.Appended(text):
                return {"type": "appended", "text": self.optional(text), "tokens": tokens}
            case events.Message(role, text):
                return {"type": "message", "role": role, "text": self.content(text), "tokens": tokens}
            case events.GenerationPrompt():
                return {"type": "generation_prompt", "tokens": tokens}
            case events.Generated(_, text, channel, finish):
                written = self.content(text)
                return {"type": "generated", "tokens": tokens, "text": written, "channel": channel, "finish": finish}
            case events.Block(role, kind, payload, _, version):
                return {
                    "type": "block", "role": role, "kind": kind, "payload": self.content(payload), "tokens": tokens,
                    "visibility_version": version,
                }  # fmt: skip
        assert_never(body)

    def _tool_call(self, body: _ToolCallBody) -> dict[str, Any]:
        match body:
            case events.ToolUse(name, arguments):
                return {"type": "tool_use", "name": name, "arguments": self.content(arguments)}
            case events.ToolResult(call_id, content, span):
                written = self.content(content)
                return {"type": "tool_result", "call_id": call_id, "content": written, "tokens": len(span)}
            case events.ToolParseFailure(raw):
                return {"type": "tool_parse_failure", "raw": self.content(raw)}
            case events.ToolExpired(call_id, reason):
                return {"type": "tool_expired", "call_id": call_id, "reason": reason}
            case events.ToolOutcome(call_id, outcome, note):
                written = self.content(note)
                return {"type": "tool_outcome", "call_id": call_id, "outcome": outcome, "note": written}
            case events.ToolReconciliation(call_id, note):
                return {"type": "tool_reconciliation", "call_id": call_id, "note": self.content(note)}
            case events.ToolCancelRequested(call_id):
                return {"type": "tool_cancel_requested", "call_id": call_id}
            case events.ToolLease(call_id, deadline):
                return {"type": "tool_lease", "call_id": call_id, "deadline_unix_ms": deadline}
        assert_never(body)

    def _standing(self, body: _StandingBody) -> dict[str, Any]:
        match body:
            case events.EpochBump():
                return {"type": "epoch_bump"}
            case events.GenerationFingerprint(digest):
                return {"type": "generation_fingerprint", "digest": f"{digest:016x}"}
            case events.MetaUpdated(version, title, archived):
                shown = self.optional(title)
                return {"type": "meta_updated", "version": version, "title": shown, "archived": archived}
            case events.QosSet(qos_class, batch_invariant):
                return {"type": "qos_set", "class": qos_class, "batch_invariant": batch_invariant}
            case events.Pinned(deadline):
                return {"type": "pinned", "deadline_unix_ms": deadline}
            case events.PermissionRequest(call_id, text):
                return {"type": "permission_request", "call_id": call_id, "text": self.content(text)}
            case events.PermissionResponse(request_id, granted):
                return {"type": "permission_response", "request_id": request_id, "granted": granted}
        assert_never(body)


def _origin(body: _OriginBody) -> dict[str, Any]:
    match body:
        case events.Created(parent, params):
            return {"type": "created", "parent": parent, "params": plain_params(params)}
        case events.Forked(parent, fork_at, params):
            return {"type": "forked", "parent": parent, "fork_at": fork_at, "params": plain_params(params)}
        case events.Rebased(parent, fork_at, params, edits):
            known = plain_params(params)
            return {"type": "rebased", "parent": parent, "fork_at": fork_at, "params": known, "edits": len(edits)}
        case events.Rerooted(purged_parent, prefix):
            return {"type": "rerooted", "purged_parent": purged_parent, "prefix_events": len(prefix)}
        case events.Purged(generation, descendants):
            return {"type": "purged", "generation": generation, "descendants": descendants.value}
    assert_never(body)


def plain_params(params: GenParams) -> dict[str, Any]:
    """All five, single-precision numbers in their shortest form."""
    plain: dict[str, Any] = JsonCodec[GenParams](describe(GenParams)).to_plain(params)
    return plain
