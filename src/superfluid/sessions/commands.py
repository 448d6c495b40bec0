"""The requests of the session API that read and write sessions without generating. Runs on the event loop.

Each method checks in the documented order, appends, and returns when its event is durable.
"""

from collections.abc import Callable, Sequence

from superfluid.chat.interface import TurnCodec
from superfluid.domain.events import (
    VISIBILITY_VERSION,
    Appended,
    Block,
    BlockKind,
    Created,
    Event,
    Forked,
    GenParams,
    Message,
    MetaUpdated,
    Pinned,
    QosSet,
    TurnRole,
)
from superfluid.domain.state import SessionState
from superfluid.errors import SessionRefusedError
from superfluid.sessions.blocks import block_text
from superfluid.sessions.declarations import parse_declarations
from superfluid.sessions.log import SessionLog
from superfluid.sessions.open_session import OpenSession
from superfluid.sessions.rules import (
    require_block,
    require_fork_point,
    require_idle,
    require_message_role,
    require_not_purging,
    require_qos_class,
)
from superfluid.sessions.writing import SessionWriter
from superfluid.store.interface import SessionRow

_LAST_UNIX_MS = 2**64 - 1


class SessionCommands:
    """Those about tool calls and permissions are in ``ToolCommands``."""

    def __init__(self, log: SessionLog, writer: SessionWriter, *, unix_ms: Callable[[], int]) -> None:
        self._log = log
        self._writer = writer
        self._unix_ms = unix_ms

    # ---- creating and reading

    async def create(self, parent: int | None, params: GenParams) -> int:
        """A new session; ``parent`` is lineage only, and must be there."""
        if parent is not None:
            await self._log.live_row(parent)
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
                tokenizer = self._writer.tokenizer
                span = await self._writer.in_thread(lambda: tokenizer.encode_text(given, is_start=is_start))
                if not span:
                    raise SessionRefusedError("the text has no tokens")
            self._require_vocabulary(span)
            return await self._writer.commit(opened, Appended(text, tuple(span)))

    async def append_message(self, session: int, role: int, text: str) -> Event:
        opened = await self._log.open(session)
        async with opened.lock:
            require_idle(opened)
            require_message_role(role)
            span = await self._writer.turn_span(opened.state, role, lambda codec: codec.turn(role, text))
            return await self._writer.commit(opened, Message(role, text, span))

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
            codec = self._writer.turns
            span = await self._writer.in_thread(lambda: codec.system_turn(text, declarations))
            return await self._writer.commit(opened, Message(TurnRole.SYSTEM, text or "", tuple(span)))

    async def append_block(self, session: int, role: int, kind: int, payload: str) -> Event:
        """Structured content. What the model is shown of it, if anything, is one turn of ``role``."""
        opened = await self._log.open(session)
        async with opened.lock:
            require_idle(opened)
            require_block(role, kind)
            text = await self._writer.in_thread(lambda: block_text(BlockKind(kind), payload))
            span = await self._block_span(opened.state, role, BlockKind(kind), text) if text else ()
            return await self._writer.commit(opened, Block(role, kind, payload, span, VISIBILITY_VERSION))

    # ---- settings

    async def set_meta(self, session: int, expected_version: int, title: str | None, archived: bool | None) -> int:
        """The new version. ``None`` leaves a field as it is; a version other than the current one is a conflict."""
        opened = await self._log.open(session)
        current = opened.state.meta_version
        if expected_version != current:
            raise SessionRefusedError(
                f"session {session} has metadata version {current}, not {expected_version}; somebody else changed it"
            )
        await self._writer.commit(opened, MetaUpdated(current + 1, title, archived))
        return current + 1

    async def set_qos(self, session: int, qos_class: int, *, batch_invariant: bool) -> Event:
        """For the generations to come; one in flight keeps its class."""
        opened = await self._log.open(session)
        require_qos_class(qos_class)
        return await self._writer.commit(opened, QosSet(qos_class, batch_invariant))

    async def pin(self, session: int, ttl_ms: int) -> int:
        """Until when, in Unix milliseconds, the prefix should stay cached. A ``ttl_ms`` of 0 lets it go: 0."""
        opened = await self._log.open(session)
        deadline = min(self._unix_ms() + ttl_ms, _LAST_UNIX_MS) if ttl_ms else 0
        await self._writer.commit(opened, Pinned(deadline))
        return deadline

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

    async def _block_span(self, state: SessionState, role: int, kind: BlockKind, text: str) -> tuple[int, ...]:
        def write(codec: TurnCodec) -> list[int]:
            if role == TurnRole.TOOL:
                return codec.tool_result(text, name=kind.name.lower())
            return codec.turn(role, text)

        return await self._writer.turn_span(state, role, write)

    def _require_vocabulary(self, span: Sequence[int]) -> None:
        limit = self._writer.tokenizer.vocabulary_tokens
        if any(token >= limit for token in span):
            raise SessionRefusedError(f"token ids must be below {limit}")
