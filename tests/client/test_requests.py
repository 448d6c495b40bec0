"""Each call's request and its answer, in the words of the wire, through both clients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from superfluid_client import (
    AsyncClient,
    AsyncSession,
    BlockKind,
    CallState,
    Client,
    Completion,
    Event,
    LedgerEntry,
    MediaSweep,
    PurgeMode,
    QosClass,
    Role,
    Session,
    SessionPurged,
    Throttled,
    ToolCall,
    VersionConflict,
)
from tests.client.fake_web_server import FakeWebServer

COMMITTED = {"Committed": {"event": {"event_id": 9, "epoch": 1, "ts_unix_ms": 5, "body": "EpochBump"}}}
EVENT = Event(9, 1, 5, "EpochBump", {})
CALL = ToolCall(4, "f", "{}")
LEDGER = {
    "name": "f",
    "arguments": "{}",
    "state": 1,
    "cancel_requested": True,
    "lease_deadline_unix_ms": 2**53,
    "late_effects": 0,
}


@dataclass(frozen=True)
class Case:
    """``make`` is done to a session or a client, and must send ``request``; ``reply`` makes it return ``result``."""

    make: Callable[[Any], Any]
    request: tuple[str, Any]
    reply: Any
    result: Any


SESSION_CASES = [
    Case(
        lambda s: s.block(BlockKind.FILE_DIFF, {"path": "é"}, role=Role.ASSISTANT),
        ("AppendBlock", {"session": 3, "role": 2, "kind": 1, "payload": '{"path": "é"}'}),
        COMMITTED,
        EVENT,
    ),
    Case(
        lambda s: s.block(4, "not JSON"),
        ("AppendBlock", {"session": 3, "role": 1, "kind": 4, "payload": "not JSON"}),
        COMMITTED,
        EVENT,
    ),
    Case(
        lambda s: s.image("ab" * 32, before="See ", after="!"),
        ("AppendImage", {"session": 3, "role": 1, "blob": "ab" * 32, "pre_text": "See ", "post_text": "!"}),
        COMMITTED,
        EVENT,
    ),
    Case(
        lambda s: s.tool_failed(CALL, "no network"),
        ("AppendToolOutcome", {"session": 3, "call_id": 4, "outcome": 1, "note": "no network"}),
        COMMITTED,
        EVENT,
    ),
    Case(
        lambda s: s.tool_cancelled(4),
        ("AppendToolOutcome", {"session": 3, "call_id": 4, "outcome": 2, "note": ""}),
        COMMITTED,
        EVENT,
    ),
    Case(
        lambda s: s.cancel_tool(Event(4, 1, 0, "ToolUse", {"name": "f", "arguments": "{}"})),
        ("RequestToolCancel", {"session": 3, "call_id": 4}),
        COMMITTED,
        EVENT,
    ),
    Case(
        lambda s: s.ledger(),
        ("Ledger", {"session": 3}),
        {"Ledger": {"entries": [[4, LEDGER]]}},
        [LedgerEntry(CALL, CallState.CANCEL_REQUESTED, True, 2**53, 0)],
    ),
    Case(
        lambda s: s.request_permission("Delete it?", CALL),
        ("RequestPermission", {"session": 3, "call_id": 4, "text": "Delete it?"}),
        COMMITTED,
        EVENT,
    ),
    Case(
        lambda s: s.request_permission("Go on?"),
        ("RequestPermission", {"session": 3, "call_id": 0, "text": "Go on?"}),
        COMMITTED,
        EVENT,
    ),
    Case(
        lambda s: s.respond_permission(EVENT, granted=False),
        ("RespondPermission", {"session": 3, "request_id": 9, "granted": False}),
        COMMITTED,
        EVENT,
    ),
    Case(
        lambda s: s.set_meta(title="Rivers", archived=True, expected_version=2),
        ("SetMeta", {"session": 3, "expected_version": 2, "title": "Rivers", "archived": True}),
        {"Meta": {"version": 3}},
        3,
    ),
    Case(
        lambda s: s.purge(PurgeMode.REROOT),
        ("Purge", {"session": 3, "expected_generation": 0, "mode": "Reroot"}),
        {"Purged": {"sessions": [3]}},
        [3],
    ),
    Case(
        lambda s: s.purge(PurgeMode.CASCADE, expected_generation=1),
        ("Purge", {"session": 3, "expected_generation": 1, "mode": "Cascade"}),
        {"Purged": {"sessions": [3, 5]}},
        [3, 5],
    ),
    Case(
        lambda s: s.set_qos(QosClass.INTERACTIVE_CHAT),
        ("SetQos", {"session": 3, "class": 0, "batch_invariant": False}),
        COMMITTED,
        EVENT,
    ),
]
CLIENT_CASES = [
    Case(
        lambda c: c.complete("def f(", "):\n"),
        ("Complete", {"prefix": "def f(", "suffix": "):\n", "mode": 0, "max_tokens": 64}),
        {"Completion": {"text": "x", "tokens": [88], "cached": True, "expired": False}},
        Completion("x", (88,), True, False),
    ),
    Case(
        lambda c: c.complete("a", max_tokens=1, suffix_first=True),
        ("Complete", {"prefix": "a", "suffix": "", "mode": 1, "max_tokens": 1}),
        {"Completion": {"text": "", "tokens": [], "cached": False, "expired": True}},
        Completion("", (), False, True),
    ),
    Case(
        lambda c: c.put_media(b"\x00\xff", "image/png"),
        ("PutMedia", {"bytes": [0, 255], "mime": "image/png"}),
        {"Media": {"hash": "ab" * 32}},
        "ab" * 32,
    ),
    Case(lambda c: c.gc_media(), ("GcMedia", None), {"Gc": {"kept": 2, "removed": 1}}, MediaSweep(2, 1)),
    Case(lambda c: c.set_background_rate(8), ("SetBackgroundRate", {"divisor": 8}), "Ack", None),
    Case(
        lambda c: c.sessions(include_archived=True),
        ("Sessions", {"include_archived": True}),
        {"SessionList": {"sessions": []}},
        [],
    ),
]


@pytest.mark.parametrize("case", SESSION_CASES, ids=lambda case: case.request[0])
async def test_session_call_sends_its_request_and_reads_the_answer(
    server: FakeWebServer, session: Session, async_session: AsyncSession, case: Case
) -> None:
    verb, fields = case.request
    server.replies = {verb: case.reply}
    assert case.make(session) == case.result
    assert await case.make(async_session) == case.result
    assert [body for _, body in server.requests] == [{verb: fields}] * 2


@pytest.mark.parametrize("case", CLIENT_CASES, ids=lambda case: case.request[0])
async def test_client_call_sends_its_request_and_reads_the_answer(
    server: FakeWebServer, client: Client, async_client: AsyncClient, case: Case
) -> None:
    verb, fields = case.request
    server.replies = {verb: case.reply}
    assert case.make(client) == case.result
    assert await case.make(async_client) == case.result
    assert [body for _, body in server.requests] == [{verb: fields}] * 2


def test_image_given_as_bytes_is_put_into_the_pool_first(server: FakeWebServer, session: Session) -> None:
    server.replies = {"PutMedia": {"Media": {"hash": "cd" * 32}}, "AppendImage": COMMITTED}
    session.image(b"GIF89a", mime="image/gif")
    put, appended = (body for _, body in server.requests)
    assert put == {"PutMedia": {"bytes": list(b"GIF89a"), "mime": "image/gif"}}
    assert appended["AppendImage"]["blob"] == "cd" * 32


def test_meta_without_a_version_asks_for_it(server: FakeWebServer, client: Client) -> None:
    session = client.session()
    server.replies = {"SetMeta": {"Meta": {"version": 1}}}
    assert session.set_title("Rivers") == 1
    assert server.last_rpc == {
        "SetMeta": {"session": session.id, "expected_version": 0, "title": "Rivers", "archived": None}
    }
    session.archive()
    assert server.last_rpc["SetMeta"]["archived"] is True
    session.archive(archived=False)
    assert server.last_rpc["SetMeta"]["archived"] is False


def test_meta_without_a_version_that_always_conflicts_gives_up(server: FakeWebServer, client: Client) -> None:
    session = client.session()
    server.replies = {"SetMeta": {"Err": {"message": "session 1 has metadata version 4, not 0; somebody else did"}}}
    with pytest.raises(VersionConflict):
        session.set_title("Rivers")
    assert sum("SetMeta" in body for _, body in server.requests) > 1


def test_meta_with_a_stale_version_is_a_conflict_at_once(server: FakeWebServer, session: Session) -> None:
    server.replies = {"SetMeta": {"Err": {"message": "session 3 has metadata version 4, not 0; somebody else did"}}}
    with pytest.raises(VersionConflict, match="version 4"):
        session.set_meta(title="Rivers", expected_version=0)
    assert len(server.requests) == 1


def test_purged_session_is_told_from_one_that_never_was(server: FakeWebServer, session: Session) -> None:
    server.replies = {"Read": {"Err": {"message": "session 3 was purged"}}}
    with pytest.raises(SessionPurged):
        session.events()


def test_throttled_reply_says_when_to_come_back(server: FakeWebServer, client: Client) -> None:
    server.replies = {"Complete": {"Throttled": {"retry_after_ms": 250}}}
    with pytest.raises(Throttled, match=r"0\.25 s") as caught:
        client.complete("a", "b")
    assert caught.value.retry_after_seconds == 0.25


def test_request_without_a_session_waits_for_a_model_that_is_loading(server: FakeWebServer, client: Client) -> None:
    loading: tuple[int, dict[str, str], bytes] = (200, {}, b'{"Err":{"message":"the model x is still loading"}}')
    server.canned = [
        loading,
        loading,
        (200, {}, b'{"Completion":{"text":"x","tokens":[],"cached":false,"expired":false}}'),
    ]
    assert client.complete("a", "b").text == "x"
