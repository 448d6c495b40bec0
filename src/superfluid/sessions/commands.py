"""The requests of the session API that read and write sessions without generating. Runs on the event loop.

Each method checks in the documented order, appends, and returns when its event is durable.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from superfluid.chat.interface import Tokenizer, TurnCodec
from superfluid.domain.events import (
    Appended,
    Body,
    Created,
    Event,
    Forked,
    GenParams,
    Message,
    ToolExpired,
    ToolExpiredReason,
    ToolReconciliation,
    ToolResult,
    TurnRole,
)
from superfluid.domain.reply import Finish
from superfluid.domain.state import CallState, SessionState, ToolCallEntry, TurnKind
from superfluid.errors import SessionNotFoundError, SessionRefusedError
from superfluid.sessions.declarations import parse_declarations
from superfluid.sessions.log import SessionLog
from superfluid.sessions.open_session import OpenSession
from superfluid.sessions.rules import require_fork_point, require_idle, require_message_role, require_not_purging
from superfluid.store.interface import Origin, SessionRow

_T = TypeVar("_T")


class SessionCommands:
    """``text`` gives the loaded model's vocabulary and turn codec; it raises ModelLoadingError until there is one."""

    def __init__(
        self,
        log: SessionLog,
        text: Callable[[], tuple[Tokenizer, TurnCodec]],
        *,
        executor: Executor,
        unix_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._text = text
        self._executor = executor
        self._unix_ms = unix_ms

    # ---- creating and reading

    async def create(self, parent: int | None, params: GenParams) -> int:
        """A new session; ``parent`` is lineage only, and must be there."""
        if parent is not None:
            await self._require_live(parent)
        state = SessionState(self._log.store.allocate_session_id())
        opened, durable = self._log.create(state, [Created(parent, params)])
        await durable
        return opened.id

    async def read(self, session: int, cursor: int) -> list[Event]:
        """Durable events from ``cursor`` on; none past the end."""
        return await self._log.read_events(await self._log.open(session), cursor)

    async def inspect(self, session: int) -> tuple[OpenSession, list[Event]]:
        opened = await self._log.open(session)
        return opened, await self._log.read_events(opened)

    async def rows(self, *, include_archived: bool) -> list[SessionRow]:
        """Live sessions by id. Does not raise epochs: a listing of everything must not write everything."""
        return await self._log.rows(include_archived=include_archived)

    # ---- appending

    async def append(self, session: int, text: str | None, span: Sequence[int]) -> Event:
        """Tokens as they are, or those of ``text``: no header, no separator."""
        opened = await self._log.open(session)
        async with opened.lock:
            require_idle(opened)
            if not span:
                if text is None:
                    raise SessionRefusedError("an append needs text or a span of tokens")
                given, is_start = text, not opened.state.tokens
                tokenizer, _ = self._text()
                span = await self.in_thread(lambda: tokenizer.encode_text(given, is_start=is_start))
                if not span:
                    raise SessionRefusedError("the text has no tokens")
            self._require_vocabulary(span)
            return await self._append(opened, Appended(text, tuple(span)))

    async def append_message(self, session: int, role: int, text: str) -> Event:
        opened = await self._log.open(session)
        async with opened.lock:
            require_idle(opened)
            require_message_role(role)
            span = await self._turn_span(opened.state, role, lambda codec: codec.turn(role, text))
            return await self._append(opened, Message(role, text, span))

    async def append_system(self, session: int, text: str | None, tools: tuple[str, ...]) -> Event:
        """The opening system turn, with tool declarations."""
        if text is None and not tools:
            raise SessionRefusedError("AppendSystem needs text or tools")
        declarations = parse_declarations(tools)
        opened = await self._log.open(session)
        async with opened.lock:
            require_idle(opened)
            if opened.state.tokens:
                raise SessionRefusedError("AppendSystem must come before any other turn")
            _, codec = self._text()
            span = await self.in_thread(lambda: codec.system_turn(text, declarations))
            return await self._append(opened, Message(TurnRole.SYSTEM, text or "", tuple(span)))

    async def append_tool_result(self, session: int, call_id: int, content: str) -> Event:
        """Answers an open call. A late answer is noted in the log and refused."""
        opened = await self._log.open(session)
        async with opened.lock:
            require_idle(opened)
            entry = self._require_call(opened, call_id)
            await self._refuse_late(opened, call_id, entry, content)
            name = entry.name
            span = await self._turn_span(
                opened.state, TurnRole.TOOL, lambda codec: codec.tool_result(content, name=name)
            )
            return await self._append(opened, ToolResult(call_id, content, span))

    async def open_tool_calls(self, session: int) -> list[tuple[int, ToolCallEntry]]:
        return (await self._log.open(session)).state.open_calls

    # ---- branching

    async def fork(self, session: int, at_event: int, params: GenParams | None) -> int:
        """A session with the first ``at_event`` events of this one, shared by reference."""
        opened = await self._log.open(session)
        require_not_purging(opened)
        require_fork_point(at_event, opened.durable_events)
        state = await self._log.inherited_state(opened, at_event)
        forked = Forked(session, at_event, params or opened.state.params)
        child, durable = self._log.create(state, [forked], base=opened)
        await durable
        return child.id

    # ----

    async def _require_live(self, session: int) -> None:
        """Without opening it, which would cost a reading and an event."""
        store = self._log.store
        row = await self._log.in_reader(lambda: store.row(session))
        if row is None:
            raise SessionNotFoundError(f"unknown session {session}")
        if row.is_purged:
            raise SessionNotFoundError(f"session {session} was purged")

    async def _append(self, opened: OpenSession, body: Body) -> Event:
        # Whoever writes to a session by its id has a name for it.
        opened.origin = Origin.SESSION_API
        return (await self._log.append(opened, [body]))[0]

    async def _turn_span(
        self, state: SessionState, role: int, write: Callable[[TurnCodec], list[int]]
    ) -> tuple[int, ...]:
        """A turn's tokens, with what must come before it where the session stands now."""
        _, codec = self._text()
        before = turn_lead_in(state, role)
        return tuple(await self.in_thread(lambda: [*before(codec), *write(codec)]))

    def _require_vocabulary(self, span: Sequence[int]) -> None:
        tokenizer, _ = self._text()
        if any(token >= tokenizer.vocabulary_tokens for token in span):
            raise SessionRefusedError(f"token ids must be below {tokenizer.vocabulary_tokens}")

    def _require_call(self, opened: OpenSession, call_id: int) -> ToolCallEntry:
        if call_id < opened.state.fork_at:
            raise SessionRefusedError(f"call {call_id} belongs to an ancestor of session {opened.id}")
        entry = opened.state.calls.get(call_id)
        if entry is None or entry.state is CallState.SUCCEEDED:
            raise SessionRefusedError(f"session {opened.id} has no open call {call_id}")
        return entry

    async def _refuse_late(self, opened: OpenSession, call_id: int, entry: ToolCallEntry, content: str) -> None:
        if not entry.is_open:
            note = f"late result: {len(content.encode())} bytes"
            await self._append(opened, ToolReconciliation(call_id, note))
            raise SessionRefusedError(f"call {call_id} has ended; its late result was noted")
        deadline = entry.lease_deadline_unix_ms
        if deadline is not None and self._unix_ms() > deadline:
            await self._append(opened, ToolExpired(call_id, ToolExpiredReason.LEASE_EXPIRED))
            raise SessionRefusedError(f"the lease of call {call_id} has expired")

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def turn_lead_in(state: SessionState, role: int) -> Callable[[TurnCodec], list[int]]:
    """What a new turn needs before it: the stream's prologue, a separator behind a finished reply, or nothing."""
    if not state.tokens:
        return lambda codec: codec.prologue(role)
    if state.last_turn is TurnKind.GENERATED and state.last_turn_finish is Finish.END_OF_TURN:
        return lambda codec: codec.separator()
    return lambda _: []
