"""Every request has an answer, in every encoding; failures read well and leak nothing."""

import hashlib
import logging
import typing

import pytest
from tests.fixtures.scripted_sessions import PARAMS, STORE_ID, TIME, ScriptedSessions

from superfluid.config import CompletionConfig
from superfluid.domain.events import (
    Block,
    Drop,
    Event,
    Message,
    PermissionRequest,
    PermissionResponse,
    PurgeMode,
    QosSet,
    Replace,
    ToolCancelRequested,
    ToolLease,
    ToolOutcome,
    ToolReconciliation,
    ToolUse,
)
from superfluid.domain.request import InfillPrompt
from superfluid.errors import FimUnsupportedError, InternalFaultError, StoreUnavailableError
from superfluid.native import json_codec, postcard, requests, responses
from superfluid.native.dispatch import StreamingRequest, answer
from superfluid.native.protocol import Request, Response
from superfluid.sessions.metering import CompletionMeter

CREATE = requests.Create(None, PARAMS)
HELLO = requests.AppendMessage(1, 1, "hi")
SUMMARY = responses.SessionSummary(1, None, 0, None, False, 0, 0, 2, 2, 0)
MESSAGE = Event(1, 1, TIME, Message(1, "hi", (104, 105)))

ANSWERED: list[tuple[Request, Response]] = [
    (requests.Create(1, PARAMS), responses.Created(2)),
    (requests.Fork(1, 2, None), responses.Created(2)),
    (requests.Trim(1, 1), responses.Created(2)),
    (requests.Rebase(1, (Drop(1, 2),), None), responses.Created(2)),
    (requests.Rebase(1, (Replace(1, 2, 1, "x"),), PARAMS), responses.Created(2)),
    (requests.AppendMessage(1, 1, "x"), responses.Committed(Event(2, 1, TIME, Message(1, "x", (120,))))),
    (requests.AppendSystem(1, None, ("{}",)), responses.Committed(Event(2, 1, TIME, Message(0, "", (0, 1))))),
    (requests.Read(1, 1), responses.Events((MESSAGE,))),
    (requests.Read(1, 9), responses.Events(())),
    (requests.List(), responses.Sessions((1,))),
    (requests.Sessions(include_archived=False), responses.SessionList((SUMMARY,))),
    (requests.Tree(), responses.Tree(((1, None, 0),))),
    (requests.OpenToolCalls(1), responses.ToolCalls(())),
    (requests.Ledger(1), responses.Ledger(())),
    (requests.AppendBlock(1, 3, 6, "x"), responses.Committed(Event(2, 1, TIME, Block(3, 6, "x", (120,), 2)))),
    (requests.RequestToolCancel(1, 4), responses.Committed(Event(2, 1, TIME, ToolCancelRequested(4)))),
    (requests.AppendToolOutcome(1, 4, 2, "no"), responses.Committed(Event(2, 1, TIME, ToolOutcome(4, 2, "no")))),
    (
        requests.RequestPermission(1, 4, "ok?"),
        responses.Committed(Event(2, 1, TIME, PermissionRequest(4, "ok?"))),
    ),
    (requests.RespondPermission(1, 5, True), responses.Committed(Event(2, 1, TIME, PermissionResponse(5, True)))),
    (requests.SetMeta(1, 0, "a", None), responses.Meta(1)),
    (requests.SetQos(1, 3, False), responses.Committed(Event(2, 1, TIME, QosSet(3, False)))),
    (requests.Pin(1, 5), responses.Pinned(TIME + 5)),
    (requests.Metrics(), responses.Text("superfluid_ticks_total 1\n")),
    (requests.SetLogLevel("debug"), responses.Ack()),
    (requests.SetBackgroundRate(4), responses.Ack()),
    (requests.Purge(1, 0, PurgeMode.REROOT), responses.Purged((1,))),
    (requests.Complete("a", "b", 0, 16), responses.Completion("two", (1, 2), False, False)),
    (requests.Cancel(1), responses.Err("session 1 has no generation in flight")),
    (requests.Read(7, 0), responses.Err("unknown session 7")),
    (requests.Warmth(1), responses.Warmth(12, 7, 3)),
    (requests.Warmth(7), responses.Err("unknown session 7")),
]


async def sessions_with_one_message() -> ScriptedSessions:
    api = ScriptedSessions()
    await answer(api, CREATE)
    await answer(api, HELLO)
    return api


@pytest.mark.parametrize(("request_", "expected"), ANSWERED, ids=lambda value: type(value).__name__)
async def test_request_is_answered_by_its_use_case(request_: Request, expected: Response) -> None:
    reply = await answer(await sessions_with_one_message(), request_)
    assert reply == expected
    assert postcard.response_codec().decode(postcard.response_codec().encode(reply)) == reply
    assert json_codec.response_codec().decode(json_codec.response_codec().encode(reply)) == reply


async def test_inspection_shows_the_whole_session() -> None:
    api = await sessions_with_one_message()
    call = api.commit(1, ToolUse("f", "{}"))
    reply = await answer(api, requests.Inspect(1))
    assert isinstance(reply, responses.Inspected)
    inspection = reply.inspection
    assert inspection.summary.events == 3
    assert inspection.summary.open_tool_calls == 1
    assert inspection.tokens == (104, 105)
    assert inspection.events == tuple(api.logs[1])
    assert inspection.open_tool_calls == ((call.event_id, "f", "{}"),)
    assert inspection.tier == responses.Cold()
    assert inspection.store_id == STORE_ID
    assert (inspection.epoch, inspection.last_finish, inspection.qos_class, inspection.wal_version) == (1, 0, 2, 2)
    assert inspection.params == PARAMS
    assert postcard.response_codec().decode(postcard.response_codec().encode(reply)) == reply


async def test_inspection_of_a_generating_session_says_resident() -> None:
    api = await sessions_with_one_message()
    await api.generate(1, 5)
    reply = await answer(api, requests.Inspect(1))
    assert isinstance(reply, responses.Inspected)
    assert reply.inspection.tier == responses.Resident()


async def test_ledger_shows_every_call_with_its_lease_and_what_became_of_it() -> None:
    api = await sessions_with_one_message()
    for body in (
        ToolUse("f", "{}"),
        ToolLease(2, 9),
        ToolUse("g", "[]"),
        ToolCancelRequested(4),
        ToolOutcome(4, 2, ""),
        ToolReconciliation(4, "late"),
    ):
        api.commit(1, body)
    reply = await answer(api, requests.Ledger(1))
    assert reply == responses.Ledger(
        (
            (2, responses.LedgerEntry("f", "{}", 0, False, 9, 0)),
            (4, responses.LedgerEntry("g", "[]", 6, True, None, 1)),
        )
    )
    assert postcard.response_codec().decode(postcard.response_codec().encode(reply)) == reply
    assert json_codec.response_codec().decode(json_codec.response_codec().encode(reply)) == reply


async def test_listing_of_archived_sessions_follows_the_request() -> None:
    api = await sessions_with_one_message()
    api.archived.add(1)
    assert await answer(api, requests.List()) == responses.Sessions((1,))
    assert await answer(api, requests.Tree()) == responses.Tree(())
    assert await answer(api, requests.Sessions(include_archived=False)) == responses.SessionList(())
    reply = await answer(api, requests.Sessions(include_archived=True))
    assert isinstance(reply, responses.SessionList)
    assert [summary.id for summary in reply.sessions] == [1]


async def test_message_to_a_busy_session_is_refused_in_the_words_clients_know() -> None:
    api = await sessions_with_one_message()
    await api.generate(1, 5)
    reply = await answer(api, HELLO)
    assert isinstance(reply, responses.Err)
    assert " is generating;" in reply.message


async def test_media_are_put_shown_and_collected() -> None:
    api = await sessions_with_one_message()
    blob = hashlib.sha256(b"x").hexdigest()
    assert await answer(api, requests.PutMedia(b"x", "any/thing")) == responses.Media(blob)
    reply = await answer(api, requests.AppendImage(1, 1, blob, "a", "b"))
    assert isinstance(reply, responses.Committed)
    assert isinstance(reply.event.body, Block)
    assert await answer(api, requests.GcMedia()) == responses.Gc(kept=0, removed=1)


@pytest.mark.parametrize("kind", typing.get_args(StreamingRequest), ids=lambda kind: kind.__name__)
async def test_streaming_request_without_a_lasting_connection_is_sent_to_the_websocket(kind: type) -> None:
    fields = [0 for _ in kind.__struct_fields__]  # type: ignore[attr-defined]
    reply = await answer(ScriptedSessions(), kind(*fields))
    assert isinstance(reply, responses.Err)
    assert kind.__name__ in reply.message
    assert "/web/ws" in reply.message


@pytest.mark.parametrize(("mode", "is_suffix_first"), [(0, False), (1, True), (2, False), (255, False)])
async def test_mode_1_alone_puts_the_suffix_first(mode: int, is_suffix_first: bool) -> None:
    api = ScriptedSessions()
    await answer(api, requests.Complete("a", "b", mode, 16))
    assert api.completions == [(InfillPrompt(prefix="a", suffix="b", is_suffix_first=is_suffix_first), 16)]


async def test_completion_beyond_the_bucket_is_throttled_and_failed_ones_count() -> None:
    api = ScriptedSessions()
    bucket = CompletionMeter(CompletionConfig(rate=2, burst=2), lambda: 0.0, api.infill_counters).bucket()
    api.failures["complete"] = FimUnsupportedError("no such tokens")
    complete = requests.Complete("a", "b", 0, 16)
    assert await answer(api, complete, bucket) == responses.Err("no such tokens")
    del api.failures["complete"]
    assert isinstance(await answer(api, complete, bucket), responses.Completion)
    assert await answer(api, complete, bucket) == responses.Throttled(500)


async def test_named_failure_is_told_to_the_client() -> None:
    api = ScriptedSessions()
    api.failures["create"] = StoreUnavailableError("the disk is full")
    assert await answer(api, CREATE) == responses.Err("the disk is full")


async def test_unforeseen_failure_goes_to_the_log_and_not_to_the_client(caplog: pytest.LogCaptureFixture) -> None:
    api = ScriptedSessions()
    api.failures["create"] = OverflowError("secret detail")
    with caplog.at_level(logging.ERROR):
        reply = await answer(api, CREATE)
    assert isinstance(reply, responses.Err)
    assert "secret" not in reply.message
    assert "secret detail" in caplog.text
    assert InternalFaultError.__name__ not in reply.message
