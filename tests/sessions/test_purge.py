"""Who goes in a purge, who stays and with what, who is told, and what a purge waits for."""

import asyncio

import apsw
import pytest
from tests.fixtures.session_core import PARAMS, USER, SessionCore, rest_of, session_core, with_call

from superfluid.domain.events import (
    Body,
    Created,
    Event,
    Forked,
    Message,
    Purged,
    PurgeMode,
    Rerooted,
    ToolExpired,
    ToolUse,
)
from superfluid.domain.reply import Finish, ReplyFinished
from superfluid.domain.request import ChatPrompt, GenerationRequest, Role, SamplingOverrides
from superfluid.domain.request import Message as ChatMessage
from superfluid.errors import DamagedRecordError, SessionBusyError, SessionNotFoundError, SessionRefusedError
from superfluid.sessions.open_session import EndReason
from superfluid.sessions.session_api import Subscription
from superfluid.store.interface import Origin, SessionRow

CASCADE, REROOT = PurgeMode.CASCADE, PurgeMode.REROOT


async def ids(core: SessionCore) -> list[int]:
    return [row.id for row in await core.sessions.session_rows(include_archived=True)]


async def rest_of_subscription(subscription: Subscription) -> tuple[list[Event], EndReason | None]:
    events: list[Event] = []
    async with asyncio.timeout(30):
        async for batch in subscription:
            events += [item for item in batch if isinstance(item, Event)]
    return events, subscription.end_reason


async def family(core: SessionCore) -> tuple[int, int, int, int]:
    """A session, a fork of it, a fork of that, and one that has the first as its lineage only."""
    root = await core.chat((USER, "root"))
    fork = await core.sessions.fork(root, 2, None)
    await core.sessions.append_message(fork, USER, "fork")
    grandchild = await core.sessions.fork(fork, 4, None)
    return root, fork, grandchild, await core.sessions.create(root, PARAMS)


# ---- who goes


async def test_cascade_purges_descendants_first_and_lists_them_in_that_order(core: SessionCore) -> None:
    other = await core.chat()
    root, fork, grandchild, lineage = await family(core)
    assert await core.sessions.purge(root, 0, CASCADE) == [grandchild, fork, lineage, root]
    assert await ids(core) == [other]


async def test_cascade_of_a_fork_leaves_what_it_was_forked_from(core: SessionCore) -> None:
    root, fork, grandchild, lineage = await family(core)
    before = await core.sessions.read(root, 0)
    assert await core.sessions.purge(fork, 0, CASCADE) == [grandchild, fork]
    assert await ids(core) == [root, lineage]
    assert await core.sessions.read(root, 0) == before


async def test_reroot_gives_children_their_own_copies_and_takes_their_parent(core: SessionCore) -> None:
    root, fork, grandchild, lineage = await family(core)
    before = {session: await core.sessions.read(session, 0) for session in (fork, grandchild, lineage)}
    assert await core.sessions.purge(root, 0, REROOT) == [root]
    rows = {row.id: row for row in await core.sessions.session_rows(include_archived=True)}
    assert {(row.id, row.parent, row.fork_at) for row in rows.values()} == {
        (fork, None, 2), (grandchild, fork, 4), (lineage, None, 0),
    }  # fmt: skip
    assert await core.sessions.read(grandchild, 0) == before[grandchild]
    *log, rerooted = await core.sessions.read(fork, 0)
    assert log == before[fork]
    assert rerooted.body == Rerooted(root, tuple((event.event_id, event.body) for event in log[:2]))
    assert (await core.sessions.read(lineage, 0))[-1].body == Rerooted(root, ())


async def test_rerooted_child_goes_on_as_if_nothing_had_happened_also_behind_a_restart(core: SessionCore) -> None:
    root, fork, grandchild, _ = await family(core)
    tokens = (await core.sessions.inspect(grandchild)).state.tokens
    await core.sessions.purge(root, 0, REROOT)
    await core.sessions.append_message(fork, USER, "on")
    await core.close()
    async with session_core(core.path) as again:
        assert (await again.sessions.inspect(grandchild)).state.tokens == tokens
        inspected = await again.sessions.inspect(fork)
        assert (inspected.row.parent, inspected.row.base, inspected.row.fork_at) == (None, None, 2)
        assert len(await again.replied(fork, "yes")) > 0
        young = await again.sessions.fork(fork, 2, None)
        assert [event.body for event in await again.sessions.read(young, 0)][1] == inspected.events[1].body


async def test_purged_again_and_again_a_log_does_not_double(core: SessionCore) -> None:
    session = await core.chat((USER, "x" * 100))
    for _ in range(12):
        length = (await core.sessions.inspect(session)).row.events
        child = await core.sessions.fork(session, length, None)
        await core.sessions.purge(session, 0, REROOT)
        session = child
    events = await core.sessions.read(session, 0)
    texts = repr(events).count("x" * 100)
    assert texts == 13, "the message, and once for each time it was inherited"


async def test_child_that_generates_is_rerooted_in_the_middle_of_its_reply(core: SessionCore) -> None:
    root = await core.chat()
    child = await core.sessions.fork(root, 2, None)
    turn = await core.sessions.generate(child, 100)
    job = core.backend.last
    job.start()
    await job.say("before")
    await core.log.settled()
    await core.sessions.purge(root, 0, REROOT)
    await job.say("behind")
    await job.end_turn()
    _, ended = await rest_of(turn)
    assert ended is not None
    assert ended.finish is Finish.END_OF_TURN
    kinds = await core.kinds(child)
    assert kinds.index("Rerooted") < len(kinds) - 1
    assert kinds[-1] == "Generated"


# ---- generation numbers, tombstones


async def test_other_generation_is_a_conflict_and_purges_nothing(core: SessionCore) -> None:
    session = await core.chat()
    with pytest.raises(SessionRefusedError, match="generation 0, not 1"):
        await core.sessions.purge(session, 1, CASCADE)
    assert await ids(core) == [session]
    await core.sessions.append_message(session, USER, "still there")


async def test_unknown_and_purged_sessions_are_refused_in_different_words(core: SessionCore) -> None:
    session = await core.chat()
    await core.sessions.purge(session, 0, REROOT)
    for generation in (0, 1):
        with pytest.raises(SessionNotFoundError, match=f"session {session} was purged"):
            await core.sessions.purge(session, generation, REROOT)
    with pytest.raises(SessionNotFoundError, match="unknown session 99"):
        await core.sessions.purge(99, 0, REROOT)


async def test_tombstone_stays_and_its_id_is_not_used_again(core: SessionCore) -> None:
    session = await core.chat()
    await core.sessions.set_meta(session, 0, "title", None)
    await core.sessions.purge(session, 0, REROOT)
    await core.close()
    async with session_core(core.path) as again:
        assert await ids(again) == []
        for request in (
            again.sessions.read(session, 0),
            again.sessions.append_message(session, USER, "x"),
            again.sessions.fork(session, 1, None),
            again.sessions.subscribe(session, 0, wants_provisional=False),
            again.sessions.create(session, PARAMS),
        ):
            with pytest.raises(SessionNotFoundError, match="was purged"):
                await request
        assert await again.sessions.create(None, PARAMS) > session
        row = again.store.row(session)
        assert row is not None
        assert (row.is_purged, row.generation, row.title, row.parent, row.base) == (True, 1, None, None, None)


async def test_record_of_the_purge_is_all_that_is_left_of_the_log(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    length = len(await core.sessions.read(session, 0))
    await core.sessions.purge(session, 0, CASCADE)
    left = core.log.decode(core.store.events(session, length + 1))
    assert [event.body for event in left] == [Purged(1, CASCADE)]
    assert core.log.decode(core.store.events(session, length + 1, length + 1)) == []
    assert call_id < length


# ---- who is told


async def test_subscribers_get_expired_calls_and_the_purge_and_then_the_end(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    length = len(await core.sessions.read(session, 0))
    subscription = await core.sessions.subscribe(session, length, wants_provisional=False)
    await core.sessions.purge(session, 0, REROOT)
    events, reason = await rest_of_subscription(subscription)
    assert [event.body for event in events] == [ToolExpired(call_id, "purged"), Purged(1, REROOT)]
    assert reason == "purged"


async def test_subscribers_of_descendants_are_told_and_those_of_rerooted_children_go_on(core: SessionCore) -> None:
    root, fork, _, lineage = await family(core)
    first = await core.sessions.subscribe(lineage, 1, wants_provisional=False)
    await core.sessions.purge(root, 0, REROOT)
    second = await core.sessions.subscribe(fork, 5, wants_provisional=False)
    assert await core.sessions.purge(fork, 0, CASCADE)
    await core.sessions.append_message(lineage, USER, "on")
    first.close()
    assert first.end_reason == "unsubscribed"
    events, reason = await rest_of_subscription(second)
    assert ([event.body for event in events], reason) == ([Purged(1, CASCADE)], "purged")


# ---- draining


async def test_generations_in_the_way_are_cancelled_and_their_clients_get_an_end(core: SessionCore) -> None:
    root = await core.chat()
    child = await core.sessions.fork(root, 2, None)
    turns = []
    for session in (root, child):
        turns.append(await core.sessions.generate(session, 100))
        core.backend.last.start()
        await core.backend.last.say("some")
    assert await core.sessions.purge(root, 0, CASCADE) == [child, root]
    for turn in turns:
        _, ended = await rest_of(turn)
        assert ended is not None
        assert ended.finish is Finish.CANCELLED


async def test_session_that_drains_answers_as_purged_and_still_reads(core: SessionCore) -> None:
    core.backend.ends_cancelled_at_once = False
    session, call_id = await with_call(core)
    turn = await core.sessions.generate(session, 100)
    core.backend.last.start()
    purging = asyncio.ensure_future(core.sessions.purge(session, 0, REROOT))
    await core.backend.last.cancelled.wait()
    for request in (
        core.sessions.append(session, "x", ()),
        core.sessions.append_message(session, USER, "x"),
        core.sessions.append_block(session, USER, 1, "{}"),
        core.sessions.append_tool_result(session, call_id, "x"),
        core.sessions.request_permission(session, 0, "x"),
        core.sessions.generate(session, 1),
        core.sessions.fork(session, 1, None),
        core.sessions.trim(session, 1),
        core.sessions.create(session, PARAMS),
        core.sessions.purge(session, 0, REROOT),
    ):
        with pytest.raises(SessionNotFoundError, match="was purged"):
            await request
    assert len(await core.sessions.read(session, 0)) > 2
    core.backend.last.finish(Finish.CANCELLED)
    assert await purging == [session]
    await rest_of(turn)


async def test_generation_that_does_not_end_in_time_is_an_error_and_all_is_as_before(core: SessionCore) -> None:
    async with session_core(core.path.with_name("slow.db"), drain_seconds=0.01) as slow:
        slow.backend.ends_cancelled_at_once = False
        root = await slow.chat()
        child = await slow.sessions.fork(root, 2, None)
        turn = await slow.sessions.generate(child, 100)
        slow.backend.last.start()
        with pytest.raises(SessionBusyError, match=f"session {child} is generating; .* nothing was purged"):
            await slow.sessions.purge(root, 0, CASCADE)
        assert await ids(slow) == [root, child]
        await slow.sessions.append_message(root, USER, "as before")
        slow.backend.last.finish(Finish.CANCELLED)
        await rest_of(turn)
        assert await slow.sessions.purge(root, 0, CASCADE) == [child, root]


async def test_two_purges_at_once_of_a_session_and_of_its_ancestor_purge_everything_once(core: SessionCore) -> None:
    root, fork, grandchild, lineage = await family(core)
    answers = await asyncio.gather(
        core.sessions.purge(fork, 0, CASCADE), core.sessions.purge(root, 0, CASCADE), return_exceptions=True
    )
    assert await ids(core) == []
    gone = [session for answer in answers if isinstance(answer, list) for session in answer]
    assert sorted(gone) == sorted([root, fork, grandchild, lineage])


async def test_append_that_is_being_rendered_is_not_stored_behind_the_end(core: SessionCore) -> None:
    session = await core.chat()
    appending = asyncio.ensure_future(core.sessions.append_message(session, USER, "late"))
    await asyncio.sleep(0)
    await core.sessions.purge(session, 0, CASCADE)
    try:
        event = await appending
    except SessionNotFoundError:
        pass
    else:
        assert isinstance(event.body, Message), "it came first"
    await core.log.settled()
    row = core.store.row(session)
    assert row is not None
    assert [event.body for event in core.log.decode(core.store.events(session, row.events - 1))] == [Purged(1, CASCADE)]


async def test_fork_that_is_on_its_way_is_purged_too_or_refused(core: SessionCore) -> None:
    session = await core.chat()
    forking = [asyncio.ensure_future(core.sessions.fork(session, at, None)) for at in (1, 2)]
    making = asyncio.ensure_future(core.sessions.create(session, PARAMS))
    await asyncio.sleep(0)
    gone = await core.sessions.purge(session, 0, CASCADE)
    made = [
        child
        for child in await asyncio.gather(*forking, making, return_exceptions=True)
        if not isinstance(child, SessionNotFoundError)
    ]
    assert set(made) == set(gone) - {session}
    assert await ids(core) == []


# ---- what cannot be read


async def damage(core: SessionCore, session: int, event: int) -> None:
    raw = apsw.Connection(str(core.path))
    raw.execute("UPDATE event SET body = x'00' WHERE session = ? AND id = ?", (session, event))
    raw.close()


async def test_damaged_session_can_be_purged(core: SessionCore) -> None:
    session = await core.chat()
    await core.close()
    await damage(core, session, 1)
    async with session_core(core.path) as again:
        assert await again.sessions.purge(session, 0, CASCADE) == [session]
        assert await ids(again) == []
        assert again.store.erasing() == []


async def test_damage_in_what_a_child_inherits_refuses_a_reroot_and_not_a_cascade(core: SessionCore) -> None:
    session = await core.chat()
    child = await core.sessions.fork(session, 2, None)
    await core.close()
    await damage(core, session, 1)
    async with session_core(core.path) as again:
        with pytest.raises(DamagedRecordError, match=f"session {child}"):
            await again.sessions.purge(session, 0, REROOT)
        assert await ids(again) == [session, child]
        assert await again.sessions.purge(session, 0, CASCADE) == [child, session]


# ---- conversations over HTTP


def chat_request(*texts: str) -> GenerationRequest:
    """What the user and the model said in turn."""
    roles: tuple[Role, Role] = ("user", "assistant")
    messages = tuple(ChatMessage(role=roles[number % 2], content=text) for number, text in enumerate(texts))
    return GenerationRequest(prompt=ChatPrompt(messages=messages), sampling=SamplingOverrides(temperature=0.0, seed=1))


async def http_turn(core: SessionCore, *texts: str) -> SessionRow:
    """One request, answered with "fine"; the session it was stored in."""
    core.backend.answer = lambda _: "fine"
    reply = await core.service.start(chat_request(*texts))
    async for _ in reply:
        pass
    return core.store.rows()[-1]


async def test_conversation_over_http_goes_on_from_its_copies_when_its_beginning_is_purged(core: SessionCore) -> None:
    first = await http_turn(core, "hello")
    second = await http_turn(core, "hello", "fine", "more")
    assert second.base == first.id
    await core.sessions.purge(first.id, 0, REROOT)
    third = await http_turn(core, "hello", "fine", "more", "fine", "again")
    assert third.base == second.id
    branch = await http_turn(core, "hello", "fine", "other")
    assert (branch.base, branch.fork_at) == (second.id, second.fork_at), "what was known of the first is known still"


async def test_conversation_over_http_starts_anew_when_all_of_it_is_purged(core: SessionCore) -> None:
    first = await http_turn(core, "hello")
    second = await http_turn(core, "hello", "fine", "more")
    assert await core.sessions.purge(first.id, 0, CASCADE) == [second.id, first.id]
    third = await http_turn(core, "hello", "fine", "more", "fine", "again")
    assert third.base is None
    assert isinstance((await core.bodies(third.id))[0], Created)


async def test_request_over_http_that_is_being_answered_is_cancelled_by_a_cascade(core: SessionCore) -> None:
    first = await http_turn(core, "hello")
    core.backend.answer = None
    reply = await core.service.start(chat_request("hello", "fine", "more"))
    core.backend.last.start()
    await core.backend.last.say("so")
    assert len(await core.sessions.purge(first.id, 0, CASCADE)) == 2
    items = [event async for batch in reply for event in batch]
    assert isinstance(items[-1], ReplyFinished)
    assert items[-1].finish is Finish.CANCELLED


async def test_request_over_http_that_begins_with_a_session_that_drains_is_read_anew(core: SessionCore) -> None:
    first = await http_turn(core, "hello")
    core.backend.answer, core.backend.ends_cancelled_at_once = None, False
    turn = await core.sessions.generate(first.id, 100)
    blocked = core.backend.last
    purging = asyncio.ensure_future(core.sessions.purge(first.id, 0, CASCADE))
    await blocked.cancelled.wait()
    second = await http_turn(core, "hello", "fine", "more")
    assert second.base is None
    blocked.finish(Finish.CANCELLED)
    assert await purging == [first.id]
    await rest_of(turn)
    assert await ids(core) == [second.id]


async def test_descendant_that_is_being_dropped_goes_with_the_purge(core: SessionCore) -> None:
    root = await core.log.open(await core.chat())
    state = await core.log.inherited_state(root, 2)
    bodies: list[Body] = [Forked(root.id, 2, PARAMS), ToolUse("f", "{}")]
    child, durable = core.log.create(state, bodies, base=root, origin=Origin.HTTP)
    await durable
    is_purged = asyncio.Event()

    async def erase_states(sessions: object) -> None:
        await is_purged.wait()

    dropping = asyncio.ensure_future(core.log.forget([child.id], erase_states=erase_states))
    await asyncio.sleep(0)
    assert await core.sessions.purge(root.id, 0, CASCADE) == [child.id, root.id]
    is_purged.set()
    await dropping
    assert core.store.erasing() == []
    assert core.store.events(child.id) == []
