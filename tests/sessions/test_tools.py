"""The rules of tool calls and permissions, one test each."""

import asyncio

import pytest
from tests.fixtures.session_core import CALL, END, SessionCore, rest_of, tokens_of, with_call

from superfluid.domain.events import (
    PermissionRequest,
    PermissionResponse,
    ToolCancelRequested,
    ToolExpired,
    ToolLease,
    ToolOutcome,
    ToolReconciliation,
    ToolResult,
    ToolUse,
)
from superfluid.domain.reply import Finish
from superfluid.domain.state import CallState
from superfluid.errors import SessionBusyError, SessionRefusedError


async def states(core: SessionCore, session: int) -> list[CallState]:
    return [entry.state for _, entry in await core.sessions.ledger(session)]


# ---- results


async def test_tool_result_answers_an_open_call_with_a_rendered_turn(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    event = await core.sessions.append_tool_result(session, call_id, "42")
    assert event.body == ToolResult(call_id, "42", tokens_of(f"\n<|im_start|>tool\n42{END}\n"))
    assert await core.sessions.open_tool_calls(session) == []
    assert await core.replied(session, "ok")


async def test_open_tool_calls_lists_open_and_cancel_requested_ones_by_id(core: SessionCore) -> None:
    session = await core.chat()
    await core.replied(session, CALL + CALL + CALL)
    ids = [call_id for call_id, _ in await core.sessions.open_tool_calls(session)]
    assert ids == sorted(ids)
    assert len(ids) == 3
    await core.sessions.request_tool_cancel(session, ids[0])
    await core.sessions.append_tool_outcome(session, ids[1], 1, "")
    left = await core.sessions.open_tool_calls(session)
    assert [(call_id, entry.name, entry.arguments) for call_id, entry in left] == [
        (ids[0], "f", '{"a":1}'),
        (ids[2], "f", '{"a":1}'),
    ]


async def test_result_of_an_unknown_or_answered_call_is_refused_and_leaves_nothing(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    await core.sessions.append_tool_result(session, call_id, "42")
    length = len(await core.sessions.read(session, 0))
    for unknown in (call_id, 0, 1, 999, 2**64 - 1):
        with pytest.raises(SessionRefusedError, match="has no open call"):
            await core.sessions.append_tool_result(session, unknown, "x")
    assert len(await core.sessions.read(session, 0)) == length


async def test_result_of_an_ancestors_call_is_refused(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    fork = await core.sessions.fork(session, call_id + 1, None)
    assert await core.sessions.open_tool_calls(fork) == []
    with pytest.raises(SessionRefusedError, match="belongs to an ancestor"):
        await core.sessions.append_tool_result(fork, call_id, "x")


@pytest.mark.parametrize(("outcome", "state"), [(1, CallState.FAILED), (2, CallState.CANCELLED_WITH_LATE_EFFECT)])
async def test_late_result_of_an_ended_call_is_noted_and_refused(
    core: SessionCore, outcome: int, state: CallState
) -> None:
    session, call_id = await with_call(core)
    opened = await core.log.open(session)
    await core.sessions.append_tool_outcome(session, call_id, outcome, "")
    tokens = len(opened.state.tokens)
    for _ in range(2):
        with pytest.raises(SessionRefusedError, match="late result was noted"):
            await core.sessions.append_tool_result(session, call_id, "née")
    assert (await core.bodies(session))[-1] == ToolReconciliation(call_id, "late result: 4 bytes")
    assert (opened.state.calls[call_id].state, opened.state.calls[call_id].late_effects) == (state, 2)
    assert len(opened.state.tokens) == tokens


async def test_result_behind_its_lease_expires_the_call(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    opened = await core.log.open(session)
    deadline = int(core.clock.unix() * 1000)
    await core.log.append(opened, [ToolLease(call_id, deadline)])
    core.clock.seconds += 0.001
    with pytest.raises(SessionRefusedError, match="lease"):
        await core.sessions.append_tool_result(session, call_id, "x")
    assert (await core.bodies(session))[-1] == ToolExpired(call_id, "lease expired")
    assert opened.state.calls[call_id].state is CallState.EXPIRED


async def test_result_at_its_deadline_is_in_time(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    opened = await core.log.open(session)
    await core.log.append(opened, [ToolLease(call_id, int(core.clock.unix() * 1000))])
    assert isinstance((await core.sessions.append_tool_result(session, call_id, "x")).body, ToolResult)


async def test_ledger_is_as_it_was_after_a_restart(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    opened = await core.log.open(session)
    await core.log.append(opened, [ToolLease(call_id, 5), PermissionRequest(call_id, "?")])
    before = (opened.state.calls, opened.state.open_permissions)
    await core.close()
    again = SessionCore(core.path)
    state = (await again.log.open(session)).state
    assert (state.calls, state.open_permissions) == before
    await again.close()


# ---- Ledger


async def test_ledger_lists_all_calls_by_id_whatever_became_of_them(core: SessionCore) -> None:
    session = await core.chat()
    await core.replied(session, CALL * 4)
    ids = [call_id for call_id, _ in await core.sessions.open_tool_calls(session)]
    await core.sessions.append_tool_outcome(session, ids[0], 2, "")
    await core.sessions.append_tool_outcome(session, ids[1], 1, "")
    await core.sessions.append_tool_result(session, ids[2], "x")
    ledger = await core.sessions.ledger(session)
    assert [call_id for call_id, _ in ledger] == ids == sorted(ids)
    assert [entry.state for _, entry in ledger] == [
        CallState.CANCELLED,
        CallState.FAILED,
        CallState.SUCCEEDED,
        CallState.OPEN,
    ]


async def test_ledger_does_not_change_when_the_session_goes_on(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    ((_, entry),) = await core.sessions.ledger(session)
    await core.sessions.append_tool_outcome(session, call_id, 1, "")
    assert entry.state is CallState.OPEN


async def test_ledger_shows_a_call_only_when_it_is_durable(core: SessionCore) -> None:
    session = await core.chat()
    opened = await core.log.open(session)
    recorded = core.log.append(opened, [ToolUse("f", "{}")])
    ledger = await core.sessions.ledger(session)
    assert [call_id for call_id, _ in ledger] == [2]
    assert recorded.done()


async def test_fork_and_its_parent_have_ledgers_of_their_own(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    fork = await core.sessions.fork(session, call_id + 1, None)
    assert await core.sessions.ledger(fork) == []
    await core.replied(fork, CALL)
    assert len(await core.sessions.ledger(fork)) == len(await core.sessions.ledger(session)) == 1


# ---- RequestToolCancel, AppendToolOutcome


async def test_cancel_is_asked_for_repeatedly_and_the_call_stays_open(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    for _ in range(2):
        assert (await core.sessions.request_tool_cancel(session, call_id)).body == ToolCancelRequested(call_id)
    ((_, entry),) = await core.sessions.open_tool_calls(session)
    assert (entry.state, entry.is_cancel_requested) == (CallState.CANCEL_REQUESTED, True)
    await core.sessions.append_tool_result(session, call_id, "x")
    ((_, entry),) = await core.sessions.ledger(session)
    assert (entry.state, entry.is_cancel_requested) == (CallState.SUCCEEDED, True)


@pytest.mark.parametrize(("outcome", "state"), [(1, CallState.FAILED), (2, CallState.CANCELLED)])
async def test_outcome_ends_a_call_whatever_its_lease_says(core: SessionCore, outcome: int, state: CallState) -> None:
    session, call_id = await with_call(core)
    await core.log.append(await core.log.open(session), [ToolLease(call_id, 1)])
    event = await core.sessions.append_tool_outcome(session, call_id, outcome, "no")
    assert event.body == ToolOutcome(call_id, outcome, "no")
    assert await states(core, session) == [state]
    assert await core.sessions.open_tool_calls(session) == []


@pytest.mark.parametrize("outcome", [0, 3, 255])
async def test_outcome_other_than_failed_or_cancelled_is_refused(core: SessionCore, outcome: int) -> None:
    session, call_id = await with_call(core)
    with pytest.raises(SessionRefusedError, match=f"outcome {outcome}"):
        await core.sessions.append_tool_outcome(session, call_id, outcome, "")
    assert await states(core, session) == [CallState.OPEN]


async def test_call_that_is_not_open_takes_no_cancel_outcome_or_question(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    await core.sessions.append_tool_outcome(session, call_id, 1, "")
    length = len(await core.sessions.read(session, 0))
    for unknown in (call_id, 1, 999, 2**64 - 1):
        for work in (
            core.sessions.request_tool_cancel(session, unknown),
            core.sessions.append_tool_outcome(session, unknown, 1, ""),
            core.sessions.append_tool_outcome(session, unknown, 9, ""),
            core.sessions.request_permission(session, unknown, "?"),
        ):
            with pytest.raises(SessionRefusedError, match=f"no open call {unknown}"):
                await work
    assert len(await core.sessions.read(session, 0)) == length


async def test_call_of_an_ancestor_is_refused_before_anything_else_is_looked_at(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    fork = await core.sessions.fork(session, call_id + 1, None)
    for work in (
        core.sessions.request_tool_cancel(fork, call_id),
        core.sessions.append_tool_outcome(fork, call_id, 9, ""),
        core.sessions.request_permission(fork, call_id, "?"),
    ):
        with pytest.raises(SessionRefusedError, match="belongs to an ancestor"):
            await work
    assert await states(core, session) == [CallState.OPEN]


async def test_call_is_cancelled_and_ended_while_the_session_generates(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    turn = await core.sessions.generate(session, 10)
    await core.sessions.request_tool_cancel(session, call_id)
    await core.sessions.append_tool_outcome(session, call_id, 2, "")
    with pytest.raises(SessionBusyError, match=" is generating;"):
        await core.sessions.append_tool_result(session, call_id, "late")
    await core.backend.last.say("ok")
    await core.backend.last.end_turn()
    (_, ended) = await rest_of(turn)
    assert ended is not None
    assert ended.finish is Finish.END_OF_TURN
    assert await states(core, session) == [CallState.CANCELLED]


async def test_outcome_waits_for_a_result_that_is_being_rendered(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    result = asyncio.ensure_future(core.sessions.append_tool_result(session, call_id, "42"))
    await asyncio.sleep(0)
    with pytest.raises(SessionRefusedError, match="no open call"):
        await core.sessions.append_tool_outcome(session, call_id, 1, "")
    await result
    assert await states(core, session) == [CallState.SUCCEEDED]


# ---- permissions


async def test_open_permission_blocks_generating_until_it_is_answered_either_way(core: SessionCore) -> None:
    session, call_id = await with_call(core)
    for granted in (True, False):
        asked = await core.sessions.request_permission(session, call_id, "may I?")
        assert asked.body == PermissionRequest(call_id, "may I?")
        with pytest.raises(SessionRefusedError, match="permission"):
            await core.sessions.generate(session, 10)
        answered = await core.sessions.respond_permission(session, asked.event_id, granted=granted)
        assert answered.body == PermissionResponse(asked.event_id, granted)
        assert await states(core, session) == [CallState.OPEN]
        assert await core.replied(session, "ok")


async def test_permission_about_no_call_has_call_0_in_forks_too(core: SessionCore) -> None:
    session = await core.chat()
    fork = await core.sessions.fork(session, 2, None)
    for target in (session, fork):
        assert (await core.sessions.request_permission(target, 0, "?")).body == PermissionRequest(0, "?")


async def test_permission_is_answered_once_and_only_if_it_was_asked(core: SessionCore) -> None:
    session = await core.chat()
    asked = (await core.sessions.request_permission(session, 0, "?")).event_id
    await core.sessions.respond_permission(session, asked, granted=False)
    for request_id in (asked, 0, 999, 2**64 - 1):
        with pytest.raises(SessionRefusedError, match=f"no open permission request {request_id}"):
            await core.sessions.respond_permission(session, request_id, granted=True)


async def test_answer_to_a_permission_is_not_refused_because_the_session_generates(core: SessionCore) -> None:
    session = await core.chat()
    await core.sessions.generate(session, 10)
    with pytest.raises(SessionRefusedError, match="no open permission"):
        await core.sessions.respond_permission(session, 1, granted=True)


async def test_every_open_permission_must_be_answered_and_forks_inherit_none(core: SessionCore) -> None:
    session = await core.chat()
    ids = [(await core.sessions.request_permission(session, 0, "?")).event_id for _ in range(2)]
    fork = await core.sessions.fork(session, ids[-1] + 1, None)
    assert await core.replied(fork, "ok")
    await core.sessions.respond_permission(session, ids[0], granted=True)
    with pytest.raises(SessionRefusedError, match="permission"):
        await core.sessions.generate(session, 10)
    with pytest.raises(SessionRefusedError, match="no open permission"):
        await core.sessions.respond_permission(fork, ids[1], granted=True)


async def test_permission_asked_before_a_restart_is_answered_behind_it(core: SessionCore) -> None:
    session = await core.chat()
    asked = (await core.sessions.request_permission(session, 0, "?")).event_id
    await core.close()
    again = SessionCore(core.path)
    with pytest.raises(SessionRefusedError, match="permission"):
        await again.sessions.generate(session, 10)
    await again.sessions.respond_permission(session, asked, granted=True)
    assert await again.replied(session, "ok")
    await again.close()
