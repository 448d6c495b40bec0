"""One record of every kind, with and without content."""

import typing
from typing import Any

import pytest

from superfluid.cli.session.records import exported_event
from superfluid.domain import events
from superfluid.domain.events import Body, Drop, Event, GenParams, PurgeMode

PARAMS = GenParams(0.7, 0.95, 0.0, 20, 1)
PLAIN_PARAMS = {"temperature": 0.7, "top_p": 0.95, "min_p": 0.0, "top_k": 20, "seed": 1}
SECRET = "märker"
COUNTED = {"bytes": 7}

# What is exported for each body; C stands for content.
C = object()
EXPORTED: list[tuple[Body, dict[str, Any]]] = [
    (events.Created(None, PARAMS), {"type": "created", "parent": None, "params": PLAIN_PARAMS}),
    (events.Forked(3, 4, PARAMS), {"type": "forked", "parent": 3, "fork_at": 4, "params": PLAIN_PARAMS}),
    (
        events.Rebased(3, 4, PARAMS, (Drop(4, 5), events.Replace(5, 6, 1, SECRET))),
        {"type": "rebased", "parent": 3, "fork_at": 4, "params": PLAIN_PARAMS, "edits": 2},
    ),
    (events.Appended(SECRET, (1, 2)), {"type": "appended", "text": C, "tokens": 2}),
    (events.Appended(None, (1,)), {"type": "appended", "text": None, "tokens": 1}),
    (events.Message(1, SECRET, (1, 2, 3)), {"type": "message", "role": 1, "text": C, "tokens": 3}),
    (events.GenerationPrompt((1, 2)), {"type": "generation_prompt", "tokens": 2}),
    (events.Generated((5,), SECRET, 1, 2), {"type": "generated", "tokens": 1, "text": C, "channel": 1, "finish": 2}),
    (events.ToolUse("get_weather", SECRET), {"type": "tool_use", "name": "get_weather", "arguments": C}),
    (events.ToolResult(4, SECRET, (1,)), {"type": "tool_result", "call_id": 4, "content": C, "tokens": 1}),
    (events.ToolParseFailure(SECRET), {"type": "tool_parse_failure", "raw": C}),
    (events.ToolExpired(4, "lease elapsed"), {"type": "tool_expired", "call_id": 4, "reason": "lease elapsed"}),
    (events.ToolOutcome(4, 2, SECRET), {"type": "tool_outcome", "call_id": 4, "outcome": 2, "note": C}),
    (events.ToolReconciliation(4, SECRET), {"type": "tool_reconciliation", "call_id": 4, "note": C}),
    (events.ToolCancelRequested(4), {"type": "tool_cancel_requested", "call_id": 4}),
    (events.ToolLease(4, 99), {"type": "tool_lease", "call_id": 4, "deadline_unix_ms": 99}),
    (
        events.Block(1, 2, SECRET, (1, 2), 2),
        {"type": "block", "role": 1, "kind": 2, "payload": C, "tokens": 2, "visibility_version": 2},
    ),
    (events.PermissionRequest(0, SECRET), {"type": "permission_request", "call_id": 0, "text": C}),
    (events.PermissionResponse(5, True), {"type": "permission_response", "request_id": 5, "granted": True}),
    (events.MetaUpdated(1, SECRET, None), {"type": "meta_updated", "version": 1, "title": C, "archived": None}),
    (events.MetaUpdated(2, None, True), {"type": "meta_updated", "version": 2, "title": None, "archived": True}),
    (events.QosSet(3, False), {"type": "qos_set", "class": 3, "batch_invariant": False}),
    (events.Pinned(7), {"type": "pinned", "deadline_unix_ms": 7}),
    (events.Purged(1, PurgeMode.REROOT), {"type": "purged", "generation": 1, "descendants": "Reroot"}),
    (
        events.Rerooted(3, ((0, events.Message(1, SECRET, (1,))),)),
        {"type": "rerooted", "purged_parent": 3, "prefix_events": 1},
    ),
    (events.GenerationFingerprint(255), {"type": "generation_fingerprint", "digest": "00000000000000ff"}),
    (events.EpochBump(), {"type": "epoch_bump"}),
]


def test_every_kind_of_record_is_in_the_table() -> None:
    assert {type(body) for body, _ in EXPORTED} == set(typing.get_args(Body))


@pytest.mark.parametrize(("body", "expected"), EXPORTED, ids=lambda each: type(each).__name__)
def test_exported_record_has_its_keys_in_order_and_no_content(body: Body, expected: dict[str, Any]) -> None:
    exported = exported_event(9, Event(4, 2, 1_700_000_000_000, body), has_content=False)
    counted = {key: COUNTED if value is C else value for key, value in expected.items()}
    assert list(exported) == ["session", "event_id", "epoch", "ts_unix_ms", "event"]
    assert exported["event"] == counted
    assert list(exported["event"]) == list(expected)
    assert SECRET not in repr(exported)


@pytest.mark.parametrize(("body", "expected"), EXPORTED, ids=lambda each: type(each).__name__)
def test_exported_record_with_content_has_the_texts(body: Body, expected: dict[str, Any]) -> None:
    exported = exported_event(9, Event(4, 2, 0, body), has_content=True)
    assert exported["event"] == {key: SECRET if value is C else value for key, value in expected.items()}


def test_exported_content_is_redacted() -> None:
    body = events.Message(1, "key sk-" + "a" * 30, ())
    assert exported_event(1, Event(0, 1, 0, body), has_content=True)["event"]["text"] == "key [REDACTED]"
