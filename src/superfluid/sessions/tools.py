"""The requests about tool calls and permissions: a session's ledger, and what is committed to it. Event loop.

The ledger holds the calls that the session itself recorded; those of its ancestors are answered there.
"""

from collections.abc import Callable
from dataclasses import replace

from superfluid.domain.events import (
    Event,
    PermissionRequest,
    PermissionResponse,
    ToolCancelRequested,
    ToolExpired,
    ToolExpiredReason,
    ToolOutcome,
    ToolReconciliation,
    ToolResult,
    TurnRole,
)
from superfluid.domain.state import CallState, ToolCallEntry
from superfluid.errors import SessionRefusedError
from superfluid.sessions.log import SessionLog
from superfluid.sessions.open_session import OpenSession
from superfluid.sessions.rules import require_idle, require_outcome
from superfluid.sessions.writing import SessionWriter

UNATTACHED = 0
"""The call of a permission request that is about no call: event 0 never is one."""


class ToolCommands:
    """Whoever decides about a call holds the session's lock: a result that is being rendered goes first."""

    def __init__(self, log: SessionLog, writer: SessionWriter, *, unix_ms: Callable[[], int]) -> None:
        self._log = log
        self._writer = writer
        self._unix_ms = unix_ms

    # ---- the ledger

    async def ledger(self, session: int) -> list[tuple[int, ToolCallEntry]]:
        """Every call by id, as a copy. What it shows is durable."""
        opened = await self._log.open(session)
        entries = [(call_id, replace(entry)) for call_id, entry in opened.state.calls.items()]
        if opened.waiting:
            await self._log.append(opened, [])
        return entries

    async def open_tool_calls(self, session: int) -> list[tuple[int, ToolCallEntry]]:
        return [(call_id, entry) for call_id, entry in await self.ledger(session) if entry.is_open]

    async def append_tool_result(self, session: int, call_id: int, content: str) -> Event:
        """Answers an open call. A late answer is noted in the log and refused."""
        opened = await self._log.open(session)
        async with opened.lock:
            require_idle(opened)
            entry = _own_call(opened, call_id)
            if entry is None or entry.state is CallState.SUCCEEDED:
                raise _no_open_call(opened, call_id)
            await self._refuse_late(opened, call_id, entry, content)
            name = entry.name
            span = await self._writer.turn_span(
                opened.state, TurnRole.TOOL, lambda codec: codec.tool_result(content, name=name)
            )
            return await self._writer.commit(opened, ToolResult(call_id, content, span))

    async def request_tool_cancel(self, session: int, call_id: int) -> Event:
        """Asks whoever runs the call to stop; it stays open. May be repeated."""
        opened = await self._log.open(session)
        async with opened.lock:
            _require_open_call(opened, call_id)
            return await self._writer.commit(opened, ToolCancelRequested(call_id))

    async def append_tool_outcome(self, session: int, call_id: int, outcome: int, note: str) -> Event:
        """Ends an open call that has no result, whatever its lease says."""
        opened = await self._log.open(session)
        async with opened.lock:
            _require_open_call(opened, call_id)
            require_outcome(outcome)
            return await self._writer.commit(opened, ToolOutcome(call_id, outcome, note))

    # ---- permissions

    async def request_permission(self, session: int, call_id: int, text: str) -> Event:
        """Nothing is generated until it is answered. The event's id is the request's."""
        opened = await self._log.open(session)
        async with opened.lock:
            require_idle(opened)
            if call_id != UNATTACHED:
                _require_open_call(opened, call_id)
            return await self._writer.commit(opened, PermissionRequest(call_id, text))

    async def respond_permission(self, session: int, request_id: int, *, granted: bool) -> Event:
        """Closes the request, once. A refusal does not end the call it is about."""
        opened = await self._log.open(session)
        async with opened.lock:
            if request_id not in opened.state.open_permissions:
                raise SessionRefusedError(f"session {opened.id} has no open permission request {request_id}")
            return await self._writer.commit(opened, PermissionResponse(request_id, granted))

    # ---- leases

    async def expire_elapsed(self, opened: OpenSession) -> None:
        """Ends the open calls whose time is up, for good: whatever becomes of the request that found them. The caller
        holds the session's lock."""
        now = self._unix_ms()
        elapsed = [
            ToolExpired(call_id, ToolExpiredReason.LEASE_ELAPSED)
            for call_id, entry in opened.state.open_calls
            if entry.lease_deadline_unix_ms is not None and entry.lease_deadline_unix_ms <= now
        ]
        if elapsed:
            await self._log.append(opened, elapsed)

    # ----

    async def _refuse_late(self, opened: OpenSession, call_id: int, entry: ToolCallEntry, content: str) -> None:
        if not entry.is_open:
            note = f"late result: {len(content.encode())} bytes"
            await self._writer.commit(opened, ToolReconciliation(call_id, note))
            raise SessionRefusedError(f"call {call_id} has ended; its late result was noted")
        deadline = entry.lease_deadline_unix_ms
        if deadline is not None and self._unix_ms() > deadline:
            await self._writer.commit(opened, ToolExpired(call_id, ToolExpiredReason.LEASE_EXPIRED))
            raise SessionRefusedError(f"the lease of call {call_id} has expired")


def tool_lease(milliseconds: int, unix_ms: Callable[[], int]) -> Callable[[], int] | None:
    """What gives a new call its deadline in Unix milliseconds; ``None`` if calls have no limit."""
    return (lambda: unix_ms() + milliseconds) if milliseconds else None


def _own_call(opened: OpenSession, call_id: int) -> ToolCallEntry | None:
    """Refuses calls that were inherited; they are in no ledger but their own session's."""
    if call_id < opened.state.fork_at:
        raise SessionRefusedError(f"call {call_id} belongs to an ancestor of session {opened.id}")
    return opened.state.calls.get(call_id)


def _require_open_call(opened: OpenSession, call_id: int) -> None:
    entry = _own_call(opened, call_id)
    if entry is None or not entry.is_open:
        raise _no_open_call(opened, call_id)


def _no_open_call(opened: OpenSession, call_id: int) -> SessionRefusedError:
    return SessionRefusedError(f"session {opened.id} has no open call {call_id}")
