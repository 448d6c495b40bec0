"""The open sessions and the way their events reach the store. Runs on the daemon's event loop.

An event is numbered and folded into its session's state when it is appended, and published when it is durable. If the
store refuses it, the session is closed and read again from what is durable: nothing of what was refused was ever shown.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec

from superfluid.clock import Clock
from superfluid.domain.events import Body, Created, EpochBump, Event, Forked, Rebased
from superfluid.domain.state import SessionState
from superfluid.errors import DamagedRecordError, SessionNotFoundError, SuperfluidError
from superfluid.sessions.open_session import OpenSession, TurnPhase, row_of, state_of_row
from superfluid.store.interface import (
    AddEvents,
    ForgetSession,
    Origin,
    PutPrefix,
    PutSession,
    SessionRow,
    SessionStore,
    StoredEvent,
    Write,
)

logger = logging.getLogger("superfluid_daemon")

_T = TypeVar("_T")
_MAX_OPEN_SESSIONS = 512
_MAX_OPEN_TOKENS = 8_000_000


class BodyCodec(Protocol):
    """Stored form of a record's body, both ways. Decoding what the checksum let through does not fail."""

    def encode(self, body: Body) -> bytes: ...

    def decode(self, data: bytes) -> Body: ...


class _Append:
    """One batch on its way: what to tell, and whom."""

    __slots__ = ("events", "future", "session", "writes")

    def __init__(
        self, session: OpenSession, events: list[Event], writes: list[Write], future: "asyncio.Future[list[Event]]"
    ) -> None:
        self.session = session
        self.events = events
        self.writes = writes
        self.future = future


class SessionLog:
    """Opens sessions and appends to them. Its methods run on the event loop; the store is read in ``reader``."""

    def __init__(self, store: SessionStore, codec: BodyCodec, *, clock: Clock, reader: Executor) -> None:
        self._store = store
        self._codec = codec
        self._clock = clock
        self._reader = reader
        self._loop = asyncio.get_running_loop()
        # A session that somebody still holds must be found again even if it was let go of here: two objects for one
        # session would number their events alike.
        self._alive: WeakValueDictionary[int, OpenSession] = WeakValueDictionary()
        self._open: OrderedDict[int, OpenSession] = OrderedDict()
        self._opening: dict[int, asyncio.Task[OpenSession]] = {}
        self._forgetting: set[int] = set()
        self._unsent: list[_Append] = []
        self._is_flush_scheduled = False

    @property
    def store(self) -> SessionStore:
        return self._store

    @property
    def open_sessions(self) -> int:
        """How many are held in memory."""
        return len(self._open)

    # ---- opening

    async def open(self, session: int) -> OpenSession:
        """The session, read from the store on first use; its epoch is raised, durably, once per start.

        Raises SessionNotFoundError for one that never was or was purged, DamagedRecordError for one that does not read.
        """
        found = self._alive.get(session)
        if found is not None and found.failure is None:
            if found.state.is_purged:
                raise SessionNotFoundError(f"session {session} was purged")
            self._keep(found)
            return found
        if session in self._forgetting:
            raise _unknown(session)
        task = self._opening.get(session)
        if task is None:
            task = self._loop.create_task(self._load(session))
            self._opening[session] = task
            task.add_done_callback(lambda _: self._opening.pop(session, None))
        # Shielded: a caller that goes away must not fail the others who wait for the same session.
        return await asyncio.shield(task)

    async def _load(self, session: int) -> OpenSession:
        row, state = await self.in_reader(lambda: self._read(session))
        opened = OpenSession(state, row.base, row.origin, row.start, durable_events=state.events)
        if row.start != self._store.start:
            opened.start = self._store.start
            state.epoch += 1
            await self.append(opened, [EpochBump()])
        elif row.is_generating:
            # Its generation ended without a last record: the store refused it.
            await self.append(opened, [], extra=[PutSession(row_of(opened, state))])
        self._keep(opened)
        return opened

    async def repair(self) -> None:
        """Opens the sessions that were generating when an earlier daemon died, which sets their rows right.

        One that cannot be read is left to whoever asks for it.
        """
        for session in await self.in_reader(self._store.generating):
            try:
                await self.open(session)
            except SuperfluidError as error:
                logger.warning("a session could not be repaired", extra={"fields": {"reason": error.message}})

    async def rows(self, *, include_archived: bool) -> list[SessionRow]:
        """Live sessions by id, with the counts of those that are generating as of now."""
        rows = await self.in_reader(lambda: self._store.rows(include_archived=include_archived))
        return [self._current(row) if row.is_generating else row for row in rows]

    def _current(self, row: SessionRow) -> SessionRow:
        opened = self._alive.get(row.id)
        if opened is None:
            return row
        # No event is counted before it is durable.
        return msgspec.structs.replace(row_of(opened, opened.state), events=opened.durable_events)

    def _read(self, session: int) -> tuple[SessionRow, SessionState]:
        row = self._store.row(session)
        if row is None:
            raise _unknown(session)
        if row.is_purged:
            raise SessionNotFoundError(f"session {session} was purged")
        state = state_of_row(row)
        events = self._decode(self._store.events(session))
        _check_lineage(row, events)
        state.apply_all(events)
        if state.events < row.events:
            raise DamagedRecordError(f"session {session}: the stored record of event {state.events} is missing")
        return row, state

    def _keep(self, opened: OpenSession) -> None:
        self._alive[opened.id] = opened
        is_new = opened.id not in self._open
        self._open[opened.id] = opened
        self._open.move_to_end(opened.id)
        if not is_new:
            return
        tokens = sum(len(session.state.tokens) for session in self._open.values())
        if len(self._open) <= _MAX_OPEN_SESSIONS and tokens <= _MAX_OPEN_TOKENS:
            return
        for session in [session for session in self._open.values() if session.is_idle and session is not opened]:
            if len(self._open) <= _MAX_OPEN_SESSIONS and tokens <= _MAX_OPEN_TOKENS:
                break
            tokens -= len(session.state.tokens)
            del self._open[session.id]

    # ---- reading

    async def read_events(self, opened: OpenSession, first: int = 0, end: int | None = None) -> list[Event]:
        """Durable events of the session, from the store: those that were durable when this was called."""
        limit = opened.durable_events if end is None else min(end, opened.durable_events)
        if first >= limit:
            return []
        session = opened.id
        return await self.in_reader(lambda: self._decode(self._store.events(session, first, limit)))

    async def inherited_state(self, parent: OpenSession, at_event: int) -> SessionState:
        """The state of a new session that has the first ``at_event`` events of ``parent``, and none of its own yet."""
        session = self._store.allocate_session_id()
        if at_event == parent.state.events and not parent.waiting:
            return parent.state.forked(session)
        state = SessionState(
            session,
            fork_at=at_event,
            parent=parent.id,
            qos_class=parent.state.qos_class,
            is_batch_invariant=parent.state.is_batch_invariant,
        )
        state.apply_all(await self.read_events(parent, 0, at_event))
        state.epoch = 1
        return state

    async def durable_state(self, opened: OpenSession, events: Sequence[Event]) -> SessionState:
        """The session's state after ``events``, its durable ones from the first on; nobody else's copy."""
        state = opened.state
        if state.events == len(events):
            return state.snapshot()
        folded = SessionState(
            opened.id,
            fork_at=state.fork_at,
            parent=state.parent,
            qos_class=state.qos_class,
            is_batch_invariant=state.is_batch_invariant,
        )
        await self.in_reader(lambda: folded.apply_all(events))
        return folded

    async def find_prefix(self, digests: Sequence[bytes]) -> PutPrefix | None:
        """See the store's ``prefix``."""
        return await self.in_reader(lambda: self._store.prefix(digests))

    async def in_reader(self, work: Callable[[], _T]) -> _T:
        """Runs ``work`` where the store is read."""
        return await self._loop.run_in_executor(self._reader, work)

    def _decode(self, stored: Sequence[StoredEvent]) -> list[Event]:
        decode = self._codec.decode
        return [Event(event.event_id, event.epoch, event.ts_unix_ms, decode(event.body)) for event in stored]

    # ---- appending

    def create(
        self,
        state: SessionState,
        bodies: Sequence[Body],
        *,
        base: OpenSession | None = None,
        origin: Origin = Origin.SESSION_API,
        extra: Sequence[Write] = (),
    ) -> tuple[OpenSession, "asyncio.Future[list[Event]]"]:
        """A new session whose state so far is ``state`` (nothing, or what it inherits from ``base``), and its first
        events. Raises the failure of ``base`` if it has one."""
        if base is not None and base.failure is not None:
            raise base.failure
        base_id = None if base is None else base.id
        opened = OpenSession(state, base_id, origin, self._store.start, durable_events=state.events)
        future = self.append(opened, bodies, extra=extra)
        self._keep(opened)
        return opened, future

    def append(
        self,
        opened: OpenSession,
        bodies: Sequence[Body],
        *,
        extra: Sequence[Write] = (),
        phase: TurnPhase | None = None,
    ) -> "asyncio.Future[list[Event]]":
        """Numbers and folds ``bodies`` now; the future has the events once they are durable, or StoreUnavailableError.

        All of them, with ``extra`` writes, become durable together or not at all. Appends made in one turn of the event
        loop reach the store together. A body that cannot be encoded raises, and nothing is appended.
        ``phase`` is that of the generation the records belong to: those in its middle leave the row alone.
        """
        future: asyncio.Future[list[Event]] = self._loop.create_future()
        if opened.failure is not None:
            future.set_exception(opened.failure)
            # Nobody may be waiting for it (a tick's records): that is no reason for a warning about a lost exception.
            future.exception()
            return future
        encoded = [self._codec.encode(body) for body in bodies]
        state = opened.state
        now = int(self._clock.unix() * 1000)
        events: list[Event] = []
        for body in bodies:
            event = Event(state.events, state.epoch, now, body)
            state.apply(event)
            events.append(event)
        stored = tuple([StoredEvent(e.event_id, e.epoch, now, data) for e, data in zip(events, encoded, strict=True)])
        if phase is not None:
            opened.is_generating = phase is not TurnPhase.LAST
        writes: list[Write] = []
        if phase is not TurnPhase.MIDDLE and (stored or phase is TurnPhase.LAST):
            writes.append(PutSession(row_of(opened, state)))
        if stored:
            writes.append(AddEvents(opened.id, stored))
        opened.waiting += 1
        self._unsent.append(_Append(opened, events, [*writes, *extra], future))
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        appends, self._unsent = self._unsent, []

        def done(errors: Sequence[SuperfluidError | None]) -> None:
            self._loop.call_soon_threadsafe(self._committed, appends, errors)

        self._store.commit([append.writes for append in appends], done)

    def _committed(self, appends: list[_Append], errors: Sequence[SuperfluidError | None]) -> None:
        for append, error in zip(appends, errors, strict=True):
            opened = append.session
            opened.waiting -= 1
            # An append without events does not show that those before it failed; it must not pass for their success.
            error = error or opened.failure
            if error is None:
                opened.durable_events += len(append.events)
                for watcher in tuple(opened.watchers):
                    watcher.committed(append.events)
                if not append.future.done():
                    append.future.set_result(append.events)
            else:
                self._refuse(append, error)

    def _refuse(self, append: _Append, error: SuperfluidError) -> None:
        self._close(append.session, error)
        if not append.future.done():
            append.future.set_exception(error)
            append.future.exception()

    def _close(self, opened: OpenSession, error: SuperfluidError) -> None:
        if self._open.get(opened.id) is opened:
            del self._open[opened.id]
        if self._alive.get(opened.id) is opened:
            del self._alive[opened.id]
        opened.fail(error)

    async def settled(self) -> None:
        """Waits until everything appended so far is durable or refused."""
        done = asyncio.Event()

        def answered(_: Sequence[SuperfluidError | None]) -> None:
            self._loop.call_soon_threadsafe(done.set)

        # Behind the flush that this turn of the loop may have scheduled.
        self._loop.call_soon(self._store.commit, (), answered)
        await done.wait()

    # ---- dropping

    def is_in_use(self, session: int) -> bool:
        """Whether somebody generates on the session, watches it, reads it in, or waits for it to be written."""
        found = self._alive.get(session)
        return session in self._opening or (found is not None and not found.is_idle)

    async def forget(self, sessions: Sequence[int]) -> None:
        """Erases sessions, rows and all, but for those that others inherit from. Raises StoreUnavailableError."""
        future: asyncio.Future[Sequence[SuperfluidError | None]] = self._loop.create_future()

        def answered(errors: Sequence[SuperfluidError | None]) -> None:
            self._loop.call_soon_threadsafe(future.set_result, errors)

        for session in sessions:
            found = self._alive.get(session)
            if found is not None:
                self._close(found, SessionNotFoundError(f"session {session} was dropped: it was old, and had no name"))
        self._forgetting.update(sessions)
        try:
            self._store.commit([[ForgetSession(session) for session in sessions]], answered)
            # Shielded, so that a caller that goes away does not leave a future that cannot be answered.
            errors = await asyncio.shield(future)
        finally:
            self._forgetting.difference_update(sessions)
        for error in errors:
            if error is not None:
                raise error

    async def oldest_http_sessions(self, limit: int, *, touched_before_unix_ms: int | None = None) -> list[SessionRow]:
        """See the store's method of that name."""
        return await self.in_reader(
            lambda: self._store.oldest_http_sessions(limit, touched_before_unix_ms=touched_before_unix_ms)
        )


def _check_lineage(row: SessionRow, events: Sequence[Event]) -> None:
    """Rows have no checksum; what a session inherits is in its own first record as well."""
    first = events[row.fork_at].body if row.fork_at < len(events) else None
    match first:
        case Forked(parent, fork_at) | Rebased(parent, fork_at):
            is_sound = row.base in (parent, None) and row.fork_at == fork_at
        case Created():
            is_sound = row.base is None
        case _:
            is_sound = False
    if not is_sound:
        raise DamagedRecordError(f"session {row.id}: the stored record of event {row.fork_at} is not its first one")


def _unknown(session: int) -> SessionNotFoundError:
    return SessionNotFoundError(f"unknown session {session}")
