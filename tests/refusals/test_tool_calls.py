"""What requests about tool calls and permissions refuse, and with which words. Over every transport."""

from collections.abc import Awaitable, Callable

import pytest
from tests.fixtures.refusal_stage import TRANSPORTS, Listeners, Refusal, check
from tests.fixtures.session_core import SessionCore, with_call

from superfluid.domain.events import ToolExpired, ToolReconciliation
from superfluid.errors import SessionRefusedError
from superfluid.native import requests, responses
from superfluid.native.protocol import Request

pytestmark = pytest.mark.asyncio(loop_scope="module")

LEASE_MS = 1000
Settle = Callable[[SessionCore, int, int], Awaitable[object]]


async def _succeed(core: SessionCore, session: int, call: int) -> None:
    await core.sessions.append_tool_result(session, call, "done")


async def _fail(core: SessionCore, session: int, call: int) -> None:
    await core.sessions.append_tool_outcome(session, call, 1, "")


async def _cancel(core: SessionCore, session: int, call: int) -> None:
    await core.sessions.append_tool_outcome(session, call, 2, "")


async def _cancel_and_finish_late(core: SessionCore, session: int, call: int) -> None:
    await _cancel(core, session, call)
    with pytest.raises(SessionRefusedError):
        await core.sessions.append_tool_result(session, call, "late")


async def _elapse(core: SessionCore, session: int, call: int) -> None:
    core.clock.seconds += LEASE_MS / 1000
    await core.sessions.generate(session, 0)


ENDED: dict[str, Settle] = {
    "succeeded": _succeed,
    "failed": _fail,
    "cancelled": _cancel,
    "cancelled with a late effect": _cancel_and_finish_late,
    "expired": _elapse,
}


def _call_of_ended(settle: Settle, make: Callable[[int, int], Request]) -> Callable[[SessionCore], Awaitable[Request]]:
    async def ask(core: SessionCore) -> Request:
        session, call = await with_call(core)
        await settle(core, session, call)
        return make(session, call)

    return ask


def _call_of_ancestor(make: Callable[[int, int], Request]) -> Callable[[SessionCore], Awaitable[Request]]:
    async def ask(core: SessionCore) -> Request:
        session, call = await with_call(core)
        fork = await core.sessions.fork(session, call + 1, None)
        return make(fork, call)

    return ask


def _unknown_call(make: Callable[[int, int], Request]) -> Callable[[SessionCore], Awaitable[Request]]:
    async def ask(core: SessionCore) -> Request:
        return make(await core.chat(), 1)

    return ask


MAKERS: dict[str, Callable[[int, int], Request]] = {
    "result": lambda session, call: requests.AppendToolResult(session, call, "né"),
    "cancel": lambda session, call: requests.RequestToolCancel(session, call),
    "outcome": lambda session, call: requests.AppendToolOutcome(session, call, 1, ""),
    "question": lambda session, call: requests.RequestPermission(session, call, "may I?"),
}

NO_CALL = "session 1 has no open call CALL"
ANCESTORS = "call CALL belongs to an ancestor of session 2"
NOTED = "call CALL has ended; its late result was noted"

ROWS = [
    *(Refusal(f"{name} of no call", _unknown_call(make), NO_CALL) for name, make in MAKERS.items()),
    *(Refusal(f"{name} of an ancestor's call", _call_of_ancestor(make), ANCESTORS) for name, make in MAKERS.items()),
    *(
        Refusal(f"{name} of a call that {state}", _call_of_ended(settle, make), NO_CALL)
        for name, make in MAKERS.items()
        for state, settle in ENDED.items()
        if name != "result" or state == "succeeded"
    ),
    *(
        Refusal(f"result of a call that {state}", _call_of_ended(settle, MAKERS["result"]), NOTED)
        for state, settle in ENDED.items()
        if state != "succeeded"
    ),
]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_request_is_refused_in_these_words(listeners: Listeners, row: Refusal, transport: str) -> None:
    await check(listeners, row, transport, tool_lease_ms=LEASE_MS)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_result_behind_its_lease_is_refused_and_expires_the_call(listeners: Listeners, transport: str) -> None:
    async with listeners.stage(tool_lease_ms=LEASE_MS) as on:
        session, call = await with_call(on.core)
        on.core.clock.seconds += LEASE_MS / 1000 + 0.001
        reply = await on.ask(transport, requests.AppendToolResult(session, call, "x"))
        assert reply == responses.Err(f"the lease of call {call} has expired")
        assert (await on.core.bodies(session))[-1] == ToolExpired(call, "lease expired")
        reply = await on.ask(transport, requests.AppendToolResult(session, call, "né"))
        assert reply == responses.Err(f"call {call} has ended; its late result was noted")
        assert (await on.core.bodies(session))[-1] == ToolReconciliation(call, "late result: 3 bytes")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("outcome", [0, 3, 255])
async def test_outcome_that_is_none_is_refused(listeners: Listeners, outcome: int, transport: str) -> None:
    async with listeners.stage() as on:
        session, call = await with_call(on.core)
        reply = await on.ask(transport, requests.AppendToolOutcome(session, call, outcome, ""))
        message = f"a call cannot end with outcome {outcome}: use 1 (failed) or 2 (cancelled)"
        assert reply == responses.Err(message)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_answer_to_a_question_that_was_not_asked_or_was_answered_is_refused(
    listeners: Listeners, transport: str
) -> None:
    async with listeners.stage() as on:
        session = await on.core.chat()
        answer = requests.RespondPermission(session, 7, True)
        assert await on.ask(transport, answer) == responses.Err("session 1 has no open permission request 7")
        asked = await on.core.sessions.request_permission(session, 0, "?")
        answer = requests.RespondPermission(session, asked.event_id, False)
        assert isinstance(await on.ask(transport, answer), responses.Committed)
        message = f"session 1 has no open permission request {asked.event_id}"
        assert await on.ask(transport, answer) == responses.Err(message)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_question_of_an_ancestor_cannot_be_answered_in_a_fork(listeners: Listeners, transport: str) -> None:
    async with listeners.stage() as on:
        session = await on.core.chat()
        asked = await on.core.sessions.request_permission(session, 0, "?")
        fork = await on.core.sessions.fork(session, asked.event_id + 1, None)
        reply = await on.ask(transport, requests.RespondPermission(fork, asked.event_id, True))
        assert reply == responses.Err(f"session {fork} has no open permission request {asked.event_id}")
