"""Tool leases: the deadline a call is recorded with, and the two moments at which it counts."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fixtures.session_core import CALL, END, SessionCore, rest_of, session_core, tokens_of

from superfluid.domain.events import (
    Event,
    Generated,
    GenerationPrompt,
    PermissionRequest,
    ToolExpired,
    ToolLease,
    ToolOutcome,
    ToolReconciliation,
    ToolUse,
)
from superfluid.domain.request import ChatPrompt, GenerationRequest, Message
from superfluid.domain.state import CallState
from superfluid.errors import SessionBusyError, SessionRefusedError

LEASE_MS = 5000
LEASE_SECONDS = LEASE_MS / 1000


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[SessionCore]:
    async with session_core(tmp_path / "sessions.db", tool_lease_ms=LEASE_MS) as built:
        yield built


def now_ms(core: SessionCore) -> int:
    return int(core.clock.unix() * 1000)


async def with_calls(core: SessionCore, count: int = 1) -> tuple[int, list[int]]:
    session = await core.chat()
    await core.replied(session, CALL * count)
    return session, [call_id for call_id, _ in await core.sessions.open_tool_calls(session)]


async def states(core: SessionCore, session: int) -> list[CallState]:
    return [entry.state for _, entry in await core.sessions.ledger(session)]


async def test_lease_is_recorded_right_behind_its_call_and_not_streamed(core: SessionCore) -> None:
    session = await core.chat()
    streamed = await core.replied(session, CALL + CALL)
    events: list[Event] = await core.sessions.read(session, 0)
    calls = [event.event_id for event in events if isinstance(event.body, ToolUse)]
    assert len(calls) == 2
    for call_id in calls:
        assert events[call_id + 1].body == ToolLease(call_id, now_ms(core) + LEASE_MS)
    assert {type(event.body) for event in streamed} == {Generated, ToolUse}
    ledger = await core.sessions.ledger(session)
    assert [entry.lease_deadline_unix_ms for _, entry in ledger] == [now_ms(core) + LEASE_MS] * 2


async def test_call_that_the_end_of_the_turn_closes_has_its_lease_last(core: SessionCore) -> None:
    session = await core.chat()
    await core.replied(session, CALL.removesuffix("</tool_call>"))
    kinds = await core.kinds(session)
    assert kinds[-2:] == ["ToolUse", "ToolLease"]


async def test_call_without_leases_has_none(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with session_core(tmp_path_factory.mktemp("store") / "sessions.db") as core:
        session, (call_id,) = await with_calls(core)
        assert "ToolLease" not in await core.kinds(session)
        assert (await core.sessions.ledger(session))[0][1].lease_deadline_unix_ms is None
        core.clock.seconds += 1e9
        await core.replied(session, "ok")
        await core.sessions.append_tool_result(session, call_id, "late but fine")


async def test_result_is_in_time_up_to_the_deadline_and_expires_the_call_behind_it(core: SessionCore) -> None:
    session, (first, second) = await with_calls(core, 2)
    core.clock.seconds += LEASE_SECONDS
    await core.sessions.append_tool_result(session, first, "x")
    core.clock.seconds += 0.001
    with pytest.raises(SessionRefusedError, match=f"the lease of call {second} has expired"):
        await core.sessions.append_tool_result(session, second, "x")
    assert (await core.bodies(session))[-1] == ToolExpired(second, "lease expired")
    assert await states(core, session) == [CallState.SUCCEEDED, CallState.EXPIRED]


async def test_generate_ends_the_open_calls_whose_time_is_up_at_their_deadline(core: SessionCore) -> None:
    session, (first, second, third) = await with_calls(core, 3)
    await core.sessions.request_tool_cancel(session, first)
    await core.sessions.append_tool_outcome(session, third, 1, "")
    core.clock.seconds += LEASE_SECONDS
    length = len(await core.sessions.read(session, 0))
    await core.replied(session, "on we go")
    bodies = await core.bodies(session)
    assert bodies[length : length + 2] == [ToolExpired(first, "lease elapsed"), ToolExpired(second, "lease elapsed")]
    assert isinstance(bodies[length + 2], GenerationPrompt)
    assert await states(core, session) == [CallState.EXPIRED, CallState.EXPIRED, CallState.FAILED]


async def test_generate_ahead_of_the_deadline_leaves_the_call_open(core: SessionCore) -> None:
    session, _ = await with_calls(core)
    core.clock.seconds += LEASE_SECONDS - 0.001
    await core.replied(session, "ok")
    assert await states(core, session) == [CallState.OPEN]


@pytest.mark.parametrize("max_tokens", [0, 10])
async def test_generate_that_is_refused_or_empty_ends_them_all_the_same(core: SessionCore, max_tokens: int) -> None:
    session, (call_id,) = await with_calls(core)
    await core.sessions.request_permission(session, 0, "may I?")
    core.clock.seconds += LEASE_SECONDS
    with pytest.raises(SessionRefusedError, match="permission"):
        await core.sessions.generate(session, max_tokens)
    assert (await core.bodies(session))[-1] == ToolExpired(call_id, "lease elapsed")
    assert isinstance((await core.bodies(session))[-2], PermissionRequest)


async def test_generate_on_a_busy_session_ends_them_between_the_records_of_the_reply(core: SessionCore) -> None:
    session, (call_id,) = await with_calls(core)
    turn = await core.sessions.generate(session, 100)
    job = core.backend.last
    job.start()
    await job.say("a")
    core.clock.seconds += LEASE_SECONDS
    with pytest.raises(SessionBusyError, match=" is generating;"):
        await core.sessions.generate(session, 100)
    await job.say("b")
    await job.end_turn()
    events, ended = await rest_of(turn)
    assert ended is not None
    assert "".join(event.body.text for event in events if isinstance(event.body, Generated)) == "ab"
    assert ToolExpired(call_id, "lease elapsed") in await core.bodies(session)
    assert await states(core, session) == [CallState.EXPIRED]


async def test_outcome_behind_the_deadline_is_taken(core: SessionCore) -> None:
    session, (call_id,) = await with_calls(core)
    core.clock.seconds += 2 * LEASE_SECONDS
    event = await core.sessions.append_tool_outcome(session, call_id, 2, "gave up")
    assert event.body == ToolOutcome(call_id, 2, "gave up")


async def test_result_of_an_expired_call_is_noted_with_its_length_and_stays_expired(core: SessionCore) -> None:
    session, (call_id,) = await with_calls(core)
    core.clock.seconds += LEASE_SECONDS
    await core.replied(session, "ok")
    with pytest.raises(SessionRefusedError, match="has ended"):
        await core.sessions.append_tool_result(session, call_id, "né")
    assert (await core.bodies(session))[-1] == ToolReconciliation(call_id, "late result: 3 bytes")
    ((_, entry),) = await core.sessions.ledger(session)
    assert (entry.state, entry.late_effects) == (CallState.EXPIRED, 1)


async def test_lease_counts_after_a_restart_even_of_a_daemon_that_gives_none(core: SessionCore) -> None:
    session, (first, second) = await with_calls(core, 2)
    await core.close()
    again = SessionCore(core.path)
    again.clock.seconds = core.clock.seconds + 2 * LEASE_SECONDS
    turn = await again.sessions.generate(session, 1)
    again.backend.last.start()
    await again.backend.last.end_turn()
    await rest_of(turn)
    assert await states(again, session) == [CallState.OPEN, CallState.OPEN]
    with pytest.raises(SessionRefusedError, match="lease"):
        await again.sessions.append_tool_result(session, first, "x")
    await again.close()
    third = SessionCore(core.path, tool_lease_ms=1)
    third.clock.seconds = again.clock.seconds
    await third.sessions.generate(session, 0)
    assert await states(third, session) == [CallState.EXPIRED, CallState.EXPIRED]
    assert (await third.bodies(session))[-1] == ToolExpired(second, "lease elapsed")
    await third.close()


async def test_fork_has_no_leases_of_its_parents_calls(core: SessionCore) -> None:
    session, _ = await with_calls(core)
    fork = await core.sessions.fork(session, len(await core.sessions.read(session, 0)), None)
    core.clock.seconds += 2 * LEASE_SECONDS
    await core.sessions.generate(fork, 0)
    assert await core.sessions.ledger(fork) == []
    assert await states(core, session) == [CallState.OPEN]


async def test_call_of_a_request_that_named_no_session_has_a_lease_too(core: SessionCore) -> None:
    reply = await core.service.start(
        GenerationRequest(prompt=ChatPrompt(messages=(Message(role="user", content="hi"),)))
    )
    job = core.backend.last
    job.start()
    await job.say(CALL)
    await job.end_turn()
    async for _ in reply:
        pass
    (row,) = await core.sessions.session_rows(include_archived=True)
    kinds = await core.kinds(row.id)
    assert kinds[kinds.index("ToolUse") + 1] == "ToolLease"


async def test_lease_does_not_change_what_the_model_reads(core: SessionCore) -> None:
    session, _ = await with_calls(core)
    opened = await core.log.open(session)
    reply = list(tokens_of(CALL + END))
    assert opened.state.tokens.tolist()[-len(reply) :] == reply
    await core.replied(session, "next")
    assert (await core.kinds(session)).count("GenerationPrompt") == 2, "the turn with the call had ended"
