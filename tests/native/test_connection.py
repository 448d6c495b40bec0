"""One client's conversation with the session API, without sockets, in both encodings."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fixtures.scripted_sessions import MAX_WAITING, PARAMS, ScriptedSessions
from tests.fixtures.session_client import DirectClient
from tests.fixtures.session_values import values

from superfluid.domain.events import Generated
from superfluid.domain.reply import Finish
from superfluid.errors import EngineFaultError
from superfluid.native import connection, postcard, requests, responses
from superfluid.native.encodings import Encoding, socket_encoding, web_encoding
from superfluid.native.protocol import Request, Response

CREATE = requests.Create(None, PARAMS)
HELLO = requests.AppendMessage(1, 1, "hi")
GENERATE = requests.Generate(1, 8)
COMPLETE = requests.Complete("one ", " three", 0, 16)
BOTH = pytest.mark.parametrize("encoding", [socket_encoding, web_encoding], ids=["postcard", "json"])
MakeEncoding = Callable[[], Encoding]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def ready_client(api: ScriptedSessions, encoding: Encoding) -> DirectClient:
    """A client whose session 1 has a message."""
    client = DirectClient(api, encoding)
    assert await client.call(CREATE) == responses.Created(1)
    assert isinstance(await client.call(HELLO), responses.Committed)
    return client


def texts(replies: list[Response]) -> list[str]:
    return [
        reply.event.body.text
        for reply in replies
        if isinstance(reply, responses.Delta) and isinstance(reply.event.body, Generated)
    ]


# ---- one request at a time


@BOTH
async def test_pipelined_requests_are_answered_in_order(encoding: MakeEncoding) -> None:
    api = ScriptedSessions()
    api.script = ["a", "b"]
    client = DirectClient(api, encoding())
    await client.send(CREATE, HELLO, GENERATE, requests.Read(1, 0), requests.List())
    client.connection.end_input()
    replies = await client.rest()
    assert [type(reply) for reply in replies] == [
        responses.Created,
        responses.Committed,
        responses.Delta,
        responses.Delta,
        responses.Delta,
        responses.Generated,
        responses.Events,
        responses.Sessions,
    ]
    await client.over()


@BOTH
async def test_generation_streams_its_events_and_repeats_them_in_the_summary(encoding: MakeEncoding) -> None:
    api = ScriptedSessions()
    client = await ready_client(api, encoding())
    await client.send(GENERATE)
    turn = await api.turns.get()
    turn.write("Hé")
    first = await client.receive()
    assert isinstance(first, responses.Delta)
    turn.use_tool("f", "{}")
    turn.end(Finish.LENGTH, warm_prefix=7)
    deltas = [first, await client.receive(), await client.receive()]
    summary = await client.receive()
    events = tuple(delta.event for delta in deltas if isinstance(delta, responses.Delta))
    assert summary == responses.Generated(events, 1, Finish.LENGTH, 7)
    assert events == tuple(api.logs[1][2:])
    assert not turn.cancelled.is_set()


@BOTH
async def test_generation_waits_for_the_one_before_it_on_the_same_connection(encoding: MakeEncoding) -> None:
    api = ScriptedSessions()
    client = await ready_client(api, encoding())
    await client.send(GENERATE, GENERATE)
    first = await api.turns.get()
    await settle()
    assert api.turns.empty()
    first.end()
    second = await api.turns.get()
    second.end()
    client.connection.end_input()
    assert [type(reply) for reply in await client.rest()] == [responses.Delta, responses.Generated] * 2


@BOTH
async def test_refused_generation_answers_one_err(encoding: MakeEncoding) -> None:
    api = ScriptedSessions()
    client = await ready_client(api, encoding())
    assert await client.call(requests.Generate(9, 1)) == responses.Err("unknown session 9")


@BOTH
async def test_generation_that_fails_midway_ends_in_an_err_and_not_in_a_summary(encoding: MakeEncoding) -> None:
    api = ScriptedSessions()
    client = await ready_client(api, encoding())
    await client.send(GENERATE)
    turn = await api.turns.get()
    turn.write("a")
    turn.fail(EngineFaultError("the engine refused a step"))
    assert isinstance(await client.receive(), responses.Delta)
    assert await client.receive() == responses.Err("the engine refused a step")
    assert await client.call(requests.List()) == responses.Sessions((1,))


async def test_cancel_on_another_connection_ends_the_generation_with_a_summary() -> None:
    api = ScriptedSessions()
    client = await ready_client(api, socket_encoding())
    other = DirectClient(api, web_encoding())
    await client.send(GENERATE)
    (await api.turns.get()).write("a")
    assert await other.call(requests.Cancel(1)) == responses.Cancelling()
    client.connection.end_input()
    *_, summary = await client.rest()
    assert isinstance(summary, responses.Generated)
    assert summary.finish == Finish.CANCELLED


# ---- what is no request


@pytest.mark.parametrize(
    "garbage", [b"", b"\xff", b"{}", b"hello", b'{"Nope":{}}', b'{"Read":{"session":-1,"cursor":0}}']
)
async def test_garbage_in_json_gets_an_err_in_its_turn_and_the_connection_goes_on(garbage: bytes) -> None:
    api = ScriptedSessions()
    client = DirectClient(api, web_encoding())
    await client.send(CREATE)
    await client.connection.inbox.put(garbage)
    await client.send(requests.List())
    client.connection.end_input()
    created, refusal, listed = await client.rest()
    assert created == responses.Created(1)
    assert isinstance(refusal, responses.Err)
    assert refusal.message.startswith("invalid request frame")
    assert listed == responses.Sessions((1,))


@pytest.mark.parametrize("garbage", [b"", b"\x23", b"\x02\x01", b"\x09\x01\x00\x02", b"\x02\x01\x01\x02\xff\xff"])
async def test_garbage_in_postcard_ends_the_connection_in_silence_after_earlier_answers(garbage: bytes) -> None:
    api = ScriptedSessions()
    client = DirectClient(api, socket_encoding())
    await client.send(CREATE)
    await client.connection.inbox.put(garbage)
    await client.send(requests.List())
    assert await client.rest() == [responses.Created(1)]
    await client.over()


async def test_bytes_behind_a_postcard_request_are_ignored() -> None:
    client = DirectClient(ScriptedSessions(), socket_encoding())
    await client.connection.inbox.put(b"\x07\x99\x99")
    assert await client.receive() == responses.Sessions(())


async def test_reply_too_long_for_a_frame_becomes_an_err() -> None:
    api = ScriptedSessions()
    small = Encoding(
        decode=postcard.request_codec().decode,
        encode=postcard.response_codec().encode,
        is_garbage_answered=False,
        max_reply_bytes=100,
    )
    client = DirectClient(api, small)
    await client.send(CREATE, requests.AppendMessage(1, 1, "x" * 200), requests.Read(1, 0), requests.List())
    client.connection.end_input()
    _, refused, also_refused, listed = await client.rest()
    assert isinstance(refused, responses.Err)
    assert isinstance(also_refused, responses.Err)
    assert listed == responses.Sessions((1,))


async def test_long_replies_are_whole_and_in_order() -> None:
    api = ScriptedSessions()
    client = await ready_client(api, web_encoding())
    for number in range(600):
        await api.append_message(1, 1, str(number))
    await client.send(requests.Read(1, 0), requests.List())
    events, listed = await client.receive(), await client.receive()
    assert isinstance(events, responses.Events)
    assert events.events == tuple(api.logs[1])
    assert listed == responses.Sessions((1,))


# ---- the client goes away


@BOTH
async def test_vanished_client_cancels_its_generation_at_once(encoding: MakeEncoding) -> None:
    api = ScriptedSessions()
    client = await ready_client(api, encoding())
    await client.send(GENERATE)
    turn = await api.turns.get()
    await settle()
    client.connection.abandon()
    assert turn.cancelled.is_set()
    await client.over()


async def test_client_that_vanishes_while_its_generation_is_accepted_cancels_it() -> None:
    api = ScriptedSessions()
    client = await ready_client(api, socket_encoding())
    api.gate = asyncio.Event()
    await client.send(GENERATE)
    await settle()
    client.connection.abandon()
    api.gate.set()
    await client.over()
    assert (await api.turns.get()).cancelled.is_set()


async def test_vanished_client_whose_replies_pile_up_is_let_go() -> None:
    api = ScriptedSessions()
    client = await ready_client(api, socket_encoding())
    await client.send(GENERATE)
    turn = await api.turns.get()
    for _ in range(connection.MAX_WAITING_REPLIES + 10):
        turn.write("x")
    await settle()
    assert len(client.connection.outbox) == connection.MAX_WAITING_REPLIES
    client.connection.abandon()
    await client.over()
    assert turn.cancelled.is_set()


@BOTH
async def test_vanished_client_cancels_its_completion_at_once(encoding: MakeEncoding) -> None:
    api = ScriptedSessions()
    client = DirectClient(api, encoding())
    api.completion_gate = asyncio.Event()
    await client.send(COMPLETE)
    await settle()
    client.connection.abandon()
    await client.over()
    assert api.completion_cancelled.is_set()


async def test_client_that_left_before_its_completion_began_asks_for_none() -> None:
    api = ScriptedSessions()
    client = DirectClient(api, socket_encoding())
    await client.send(COMPLETE)
    client.connection.abandon()
    await client.over()
    assert api.completions == []


async def test_cancelled_connection_cancels_its_completion() -> None:
    api = ScriptedSessions()
    client = DirectClient(api, socket_encoding())
    api.completion_gate = asyncio.Event()
    await client.send(COMPLETE)
    await settle()
    client.task.cancel()
    await asyncio.wait((client.task,))
    await settle()
    assert api.completion_cancelled.is_set()


async def test_finishing_at_once_cuts_a_completion_and_tells_the_client() -> None:
    api = ScriptedSessions()
    client = DirectClient(api, socket_encoding())
    api.completion_gate = asyncio.Event()
    await client.send(COMPLETE)
    await settle()
    client.connection.finish(at_once=True)
    assert await client.rest() == [responses.Err("the connection ended before the completion did")]


@BOTH
async def test_completions_are_metered_by_connection(encoding: MakeEncoding) -> None:
    api = ScriptedSessions()
    first, second = DirectClient(api, encoding()), DirectClient(api, encoding())
    replies = [await first.call(COMPLETE) for _ in range(21)]
    assert replies[:20] == [responses.Completion("two", (1, 2), False, False)] * 20
    assert replies[20] == responses.Throttled(100)
    assert isinstance(await second.call(COMPLETE), responses.Completion)
    assert await first.call(requests.List()) == responses.Sessions(())


async def test_first_request_of_a_client_that_left_is_carried_out_and_the_rest_is_dropped() -> None:
    api = ScriptedSessions()
    client = DirectClient(api, socket_encoding())
    await client.send(CREATE, HELLO)
    client.connection.abandon()
    await client.over()
    assert api.calls == ["create"]


async def test_client_that_left_before_its_generation_began_starts_none() -> None:
    api = ScriptedSessions()
    client = await ready_client(api, socket_encoding())
    await client.send(GENERATE)
    client.connection.abandon()
    await client.over()
    assert "generate" not in api.calls


async def test_request_in_hand_is_finished_though_the_client_left() -> None:
    api = ScriptedSessions()
    client = DirectClient(api, socket_encoding())
    api.gate = asyncio.Event()
    await client.send(CREATE)
    await settle()
    client.connection.abandon()
    await settle()
    assert not client.task.done()
    api.gate.set()
    await client.over()
    assert list(api.logs) == [1]


async def test_half_closed_client_gets_all_answers() -> None:
    api = ScriptedSessions()
    client = await ready_client(api, socket_encoding())
    await client.send(GENERATE, requests.List())
    client.connection.end_input()
    turn = await api.turns.get()
    turn.write("a")
    turn.end()
    replies = await client.rest()
    assert texts(replies) == ["a", ""]
    assert replies[-1] == responses.Sessions((1,))


# ---- the server stops


async def test_finishing_connection_answers_the_request_in_hand_and_no_other() -> None:
    api = ScriptedSessions()
    client = await ready_client(api, web_encoding())
    await client.send(GENERATE, requests.List())
    turn = await api.turns.get()
    client.connection.finish()
    await settle()
    assert not turn.cancelled.is_set()
    turn.end()
    *_, summary = await client.rest()
    assert isinstance(summary, responses.Generated)


async def test_finishing_at_once_cancels_the_generation_and_tells_the_client() -> None:
    api = ScriptedSessions()
    client = await ready_client(api, web_encoding())
    await client.send(GENERATE)
    await api.turns.get()
    client.connection.finish(at_once=True)
    *_, summary = await client.rest()
    assert isinstance(summary, responses.Generated)
    assert summary.finish == Finish.CANCELLED


@pytest.mark.parametrize("is_at_its_end", [False, True])
async def test_cancelled_connection_does_not_wait_for_a_client_that_reads_nothing(is_at_its_end: bool) -> None:
    api = ScriptedSessions()
    client = await ready_client(api, socket_encoding())
    await client.call(requests.Subscribe(1, 2, provisional=False))
    for _ in range(connection.MAX_WAITING_REPLIES + 20):
        await api.append_message(1, 1, "x")
        await asyncio.sleep(0)
    assert len(client.connection.outbox) == connection.MAX_WAITING_REPLIES
    if is_at_its_end:
        client.connection.finish()
        await asyncio.sleep(0)
    client.task.cancel()
    done, _ = await asyncio.wait((client.task,), timeout=1)
    assert done
    await asyncio.sleep(0)
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("subscription")] == []


async def test_cancelled_connection_cancels_its_generation_and_ends_its_subscriptions() -> None:
    api = ScriptedSessions()
    client = await ready_client(api, socket_encoding())
    await client.call(requests.Subscribe(1, 0, provisional=False))
    await client.send(GENERATE)
    turn = await api.turns.get()
    client.task.cancel()
    await asyncio.wait((client.task,))
    assert turn.cancelled.is_set()
    assert api.subscriptions[1][1].end_reason == "unsubscribed"


# ---- subscriptions


@BOTH
async def test_subscription_gives_the_backlog_and_then_live_events(encoding: MakeEncoding) -> None:
    api = ScriptedSessions()
    client = await ready_client(api, encoding())
    await client.send(requests.Subscribe(1, 1, provisional=True))
    assert await client.receive() == responses.Subscribed(1)
    assert await client.receive() == responses.SubEvent(1, api.logs[1][1])
    api.provisional(1, "ahead")
    assert await client.receive() == responses.SubProvisional(1, 0, "ahead")
    event = await api.append_message(1, 1, "more")
    assert await client.receive() == responses.SubEvent(1, event)


async def test_subscription_frames_come_between_the_frames_of_a_generation() -> None:
    api = ScriptedSessions()
    client = await ready_client(api, socket_encoding())
    await client.send(requests.Subscribe(1, 2, provisional=False))
    assert isinstance(await client.receive(), responses.Subscribed)
    await client.send(GENERATE)
    turn = await api.turns.get()
    turn.write("a")
    kinds = {type(await client.receive()), type(await client.receive())}
    assert kinds == {responses.Delta, responses.SubEvent}
    assert not turn.is_over


async def test_subscription_to_an_unknown_session_is_refused() -> None:
    client = DirectClient(ScriptedSessions(), socket_encoding())
    assert await client.call(requests.Subscribe(5, 0, provisional=False)) == responses.Err("unknown session 5")


@BOTH
async def test_unsubscribe_ends_the_subscription_and_nothing_of_it_follows(encoding: MakeEncoding) -> None:
    api = ScriptedSessions()
    client = await ready_client(api, encoding())
    await client.send(requests.Subscribe(1, 2, provisional=False), requests.Unsubscribe(1))
    await api.append_message(1, 1, "late")
    client.connection.end_input()
    replies = await client.rest()
    assert replies[0] == responses.Subscribed(1)
    assert set(map(repr, replies[-2:])) == {
        repr(responses.SubEnded(1, "unsubscribed")),
        repr(responses.Unsubscribed()),
    }
    assert len(api.subscriptions[1][1]._waiting) == 0


async def test_unsubscribe_works_only_on_the_connection_that_subscribed() -> None:
    api = ScriptedSessions()
    client = await ready_client(api, socket_encoding())
    other = DirectClient(api, socket_encoding())
    await client.call(requests.Subscribe(1, 2, provisional=False))
    assert isinstance(await other.call(requests.Unsubscribe(1)), responses.Err)
    assert api.subscriptions[1][1].end_reason is None


async def test_second_unsubscribe_is_refused() -> None:
    api = ScriptedSessions()
    client = await ready_client(api, socket_encoding())
    await client.send(requests.Subscribe(1, 2, provisional=False), requests.Unsubscribe(1), requests.Unsubscribe(1))
    client.connection.end_input()
    assert isinstance((await client.rest())[-1], responses.Err)


async def test_subscription_that_ended_by_itself_can_be_taken_leave_of_once() -> None:
    api = ScriptedSessions()
    client = await ready_client(api, socket_encoding())
    await client.call(requests.Subscribe(1, 2, provisional=False))
    api.subscriptions[1][1].stop("purged")
    assert await client.receive() == responses.SubEnded(1, "purged")
    assert await client.call(requests.Unsubscribe(1)) == responses.Unsubscribed()
    assert isinstance(await client.call(requests.Unsubscribe(1)), responses.Err)


async def test_subscription_whose_reader_is_blocked_ends_as_lagged_after_what_waited() -> None:
    api = ScriptedSessions()
    client = await ready_client(api, socket_encoding())
    await client.call(requests.Subscribe(1, 2, provisional=False))
    # Nobody takes from the outbox: it fills, then the subscription does.
    for _ in range(MAX_WAITING + connection.MAX_WAITING_REPLIES + 20):
        await api.append_message(1, 1, "x")
        await asyncio.sleep(0)
    assert api.subscriptions[1][1].end_reason == "lagged"
    client.connection.end_input()
    *received, last = await client.rest()
    assert last == responses.SubEnded(1, "lagged")
    ids = [reply.event.event_id for reply in received if isinstance(reply, responses.SubEvent)]
    assert ids == list(range(2, 2 + len(ids)))
    assert len(ids) >= MAX_WAITING


async def test_end_of_input_detaches_subscriptions_with_a_last_word() -> None:
    api = ScriptedSessions()
    client = await ready_client(api, socket_encoding())
    await client.call(requests.Subscribe(1, 2, provisional=False))
    client.connection.end_input()
    assert await client.rest() == [responses.SubEnded(1, "unsubscribed")]
    await client.over()


# ---- anything at all


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    frames=st.lists(
        st.binary(max_size=40) | values(Request).map(lambda request: postcard.request_codec().encode(request)),
        max_size=12,
    ),
    is_abandoned=st.booleans(),
)
def test_random_frames_never_break_a_connection(frames: list[bytes], is_abandoned: bool) -> None:
    async def converse() -> None:
        api = ScriptedSessions()
        api.script = ["a"]
        await api.create(None, PARAMS)
        client = DirectClient(api, socket_encoding())
        for frame in frames:
            await client.connection.inbox.put(frame)
        if is_abandoned:
            client.connection.abandon()
        client.connection.end_input()
        await client.rest()
        await client.over()
        assert all(subscription.end_reason for _, subscription in api.subscriptions.values())
        assert not api.running

    asyncio.run(converse())


@settings(max_examples=60, deadline=None)
@given(frames=st.lists(st.binary(max_size=40) | st.text(max_size=40).map(str.encode), max_size=12))
def test_every_garbage_message_in_json_gets_exactly_one_answer(frames: list[bytes]) -> None:
    async def converse() -> None:
        client = DirectClient(ScriptedSessions(), web_encoding())
        for frame in frames:
            await client.connection.inbox.put(b"!" + frame)
        client.connection.end_input()
        replies = await client.rest()
        assert len(replies) == len(frames)
        assert all(isinstance(reply, responses.Err) for reply in replies)

    asyncio.run(converse())
