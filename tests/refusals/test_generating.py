"""What generating, cancelling, following and the busy rule refuse, and with which words. Over every transport."""

import pytest
from tests.fixtures.refusal_stage import TRANSPORTS, Listeners, Refusal, Stage, check, refused
from tests.fixtures.session_core import PARAMS, SessionCore, spans, tokens_of, with_call

from superfluid.domain.events import Drop, PurgeMode
from superfluid.domain.reply import Finish
from superfluid.errors import QueueFullError
from superfluid.native import requests, responses
from superfluid.native.protocol import Request, Response

pytestmark = pytest.mark.asyncio(loop_scope="module")

BUSY = "session 1 is generating; wait for the end or cancel it"
NO_INPUT = "session 1 has no input yet; append a message first"
PURGED = "session 1 was purged"


async def _no_input(core: SessionCore) -> Request:
    return requests.Generate(await core.sessions.create(None, PARAMS), 5)


async def _no_input_and_no_tokens_wanted(core: SessionCore) -> Request:
    return requests.Generate(await core.sessions.create(None, PARAMS), 0)


async def _open_question(core: SessionCore) -> Request:
    session = await core.chat()
    await core.sessions.request_permission(session, 0, "?")
    return requests.Generate(session, 0)


async def _too_long(core: SessionCore) -> Request:
    session = await core.sessions.create(None, PARAMS)
    await core.sessions.append(session, None, (65,) * 4097)
    return requests.Generate(session, 0)


async def _no_room_for_a_turn(core: SessionCore) -> Request:
    probe = await core.chat((1, "a"), (1, "b"))
    (_, _, turn) = await core.sessions.read(probe, 0)
    session = await core.sessions.create(None, PARAMS)
    await core.sessions.append(session, None, (65,) * (4095 - len(spans([turn]))))
    await core.sessions.append_message(session, 1, "b")
    return requests.Generate(session, 1)


async def _loading(core: SessionCore) -> Request:
    session = await core.chat()
    core.backend.is_loading = True
    return requests.Generate(session, 5)


async def _draining(core: SessionCore) -> Request:
    session = await core.chat()
    core.counter.is_draining = True
    return requests.Generate(session, 5)


async def _full(core: SessionCore) -> Request:
    session = await core.chat()
    core.backend.refusal = QueueFullError("Too many requests are waiting.")
    return requests.Generate(session, 5)


ROWS = [
    Refusal("no input", _no_input, "session 1 has no input yet; append a message first"),
    Refusal(
        "no input, no tokens wanted",
        _no_input_and_no_tokens_wanted,
        "session 1 has no input yet; append a message first",
    ),
    Refusal("open question", _open_question, "session 1 waits for a permission; answer it first"),
    Refusal(
        "longer than the window",
        _too_long,
        "the input of session 1 has 4097 tokens; the context window is 4096 tokens, the reply included",
    ),
    Refusal("loading", _loading, "still loading"),
    Refusal("draining", _draining, "the server is shutting down and takes no new requests"),
    Refusal("queue full", _full, "Too many requests are waiting."),
    refused("cancel of nothing", requests.Cancel(1), "session 1: no generation in flight"),
    refused(
        "metadata of another version",
        requests.SetMeta(1, 1, "x", None),
        "session 1 has metadata version 0, not 1; somebody else changed it",
    ),
    refused("class 4", requests.SetQos(1, 4, False), "there is no scheduling class 4: use 0 to 3"),
    refused("class 255", requests.SetQos(1, 255, True), "there is no scheduling class 255: use 0 to 3"),
]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_request_is_refused_in_these_words(listeners: Listeners, row: Refusal, transport: str) -> None:
    await check(listeners, row, transport)


async def test_new_turn_without_room_is_refused_with_what_it_would_need(listeners: Listeners) -> None:
    async with listeners.stage() as on:
        request = await _no_room_for_a_turn(on.core)
        reply = await on.ask("socket", request)
        assert isinstance(reply, responses.Err)
        needed = 4095 + len(tokens_of("<|im_start|>assistant\n"))
        assert reply.message == (
            f"the input of session 2 has {needed} tokens; the context window is 4096 tokens, the reply included"
        )


# ---- the busy rule


async def _busy(on: Stage) -> tuple[int, int, int]:
    """A session that generates; an open call and an open question of it."""
    session, call = await with_call(on.core)
    asked = await on.core.sessions.request_permission(session, 0, "?")
    await on.core.sessions.respond_permission(session, asked.event_id, granted=True)
    await on.core.sessions.generate(session, 100)
    on.core.backend.last.start()
    return session, call, asked.event_id


REFUSED_WHILE_BUSY = {
    requests.Append(1, "x", ()): "append",
    requests.AppendMessage(1, 9, "x"): "message, whose role is wrong too",
    requests.AppendSystem(1, "x", ()): "system turn, which is late too",
    requests.AppendBlock(1, 9, 9, ""): "block, whose role is wrong too",
    requests.AppendToolResult(1, 99, "x"): "result, whose call is unknown too",
    requests.RequestPermission(1, 99, "?"): "question, whose call is unknown too",
    requests.Generate(1, 1): "generate",
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("request_", REFUSED_WHILE_BUSY, ids=REFUSED_WHILE_BUSY.values())
async def test_busy_session_refuses(listeners: Listeners, request_: Request, transport: str) -> None:
    async with listeners.stage() as on:
        await _busy(on)
        assert await on.ask(transport, request_) == responses.Err(BUSY)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_busy_session_allows_everything_else(listeners: Listeners, transport: str) -> None:
    async with listeners.stage() as on:
        session, call, _ = await _busy(on)
        allowed: list[tuple[Request, type[Response]]] = [
            (requests.Read(session, 0), responses.Events),
            (requests.Inspect(session), responses.Inspected),
            (requests.Ledger(session), responses.Ledger),
            (requests.OpenToolCalls(session), responses.ToolCalls),
            (requests.Fork(session, 2, None), responses.Created),
            (requests.Rebase(session, (Drop(1, 2),), None), responses.Created),
            (requests.Trim(session, 1), responses.Created),
            (requests.SetMeta(session, 0, "t", True), responses.Meta),
            (requests.SetQos(session, 0, False), responses.Committed),
            (requests.Pin(session, 5), responses.Pinned),
            (requests.RequestToolCancel(session, call), responses.Committed),
            (requests.AppendToolOutcome(session, call, 2, ""), responses.Committed),
            (requests.Generate(session, 0), responses.Generated),
        ]
        if transport != "rpc":
            allowed.append((requests.Subscribe(session, 0, True), responses.Subscribed))
        wrong = [
            (request, reply)
            for request, kind in allowed
            if not isinstance(reply := await on.ask(transport, request), kind)
        ]
        assert wrong == []
        # A question that is open when a generation begins would have kept it from beginning.
        reply = await on.ask(transport, requests.RespondPermission(session, 1, True))
        assert reply == responses.Err(f"session {session} has no open permission request 1")
        assert await on.ask(transport, requests.Cancel(session)) == responses.Cancelling()


async def test_busy_session_is_purged_and_refuses_as_purged_meanwhile(listeners: Listeners) -> None:
    async with listeners.stage() as on:
        session, _, _ = await _busy(on)
        on.core.backend.ends_cancelled_at_once = False
        purging = await on.socket()
        await purging.send(requests.Purge(session, 0, PurgeMode.CASCADE))
        job = on.core.backend.last
        while not job.is_cancelled:
            await on.ask("socket", requests.List())
        for request in (
            requests.Append(session, "x", ()),
            requests.Generate(session, 1),
            requests.Fork(session, 1, None),
            requests.Rebase(session, (Drop(1, 2),), None),
            requests.RequestPermission(session, 0, "?"),
        ):
            for transport in TRANSPORTS:
                assert await on.ask(transport, request) == responses.Err(PURGED), request
        job.finish(Finish.CANCELLED)
        assert await purging.receive() == responses.Purged((session,))
        await purging.close()


async def test_generation_behind_one_that_ended_is_never_refused_as_busy(listeners: Listeners) -> None:
    async with listeners.stage() as on:
        session = await on.core.chat()
        on.core.backend.answer = lambda _: "ok"
        client = await on.socket()
        for _ in range(20):
            await client.send(requests.Generate(session, 1))
            while not isinstance(reply := await client.receive(), responses.Generated):
                assert isinstance(reply, responses.Delta), reply
        await client.close()


# ---- following


@pytest.mark.parametrize("transport", ["socket", "websocket"])
async def test_following_what_is_not_there_is_refused(listeners: Listeners, transport: str) -> None:
    async with listeners.stage() as on:
        reply = await on.ask(transport, requests.Subscribe(9, 0, False))
        assert reply == responses.Err("unknown session 9")
        reply = await on.ask(transport, requests.Unsubscribe(1))
        assert reply == responses.Err("this connection has no subscription 1")


async def test_subscription_of_another_connection_is_refused_and_goes_on(listeners: Listeners) -> None:
    async with listeners.stage() as on:
        session = await on.core.chat()
        client = await on.socket()
        assert await client.call(requests.Subscribe(session, 2, False)) == responses.Subscribed(1)
        refusal = responses.Err("this connection has no subscription 1")
        assert await on.ask("socket", requests.Unsubscribe(1)) == refusal
        assert await on.ask("websocket", requests.Unsubscribe(1)) == refusal
        await on.core.sessions.append_message(session, 1, "still here")
        assert isinstance(await client.receive(), responses.SubEvent)
        assert {type(await client.call(requests.Unsubscribe(1))), type(await client.receive())} == {
            responses.SubEnded,
            responses.Unsubscribed,
        }
        assert await client.call(requests.Unsubscribe(1)) == refusal
        await client.close()


@pytest.mark.parametrize(
    "request_",
    [requests.Generate(1, 1), requests.Subscribe(1, 0, False), requests.Unsubscribe(1)],
    ids=lambda request: type(request).__name__,
)
async def test_request_that_needs_a_lasting_connection_is_told_where_to_go_by_rpc(
    listeners: Listeners, request_: Request
) -> None:
    async with listeners.stage() as on:
        reply = await on._over_rpc(request_)
        name = type(request_).__name__
        assert reply == responses.Err(f"{name} needs a connection that stays open: use /web/ws or the unix socket")
