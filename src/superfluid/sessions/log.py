"""The open sessions and the way their events reach the store. Runs on the daemon's event loop.

An event is numbered and folded into its session's state when it is appended, and published when it is durable. If the
store refuses it, the session is closed and read again from what is durable: nothing of what was refused was ever shown.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Literal, Protocol
from weakref import WeakValueDictionary

from superfluid.clock import Clock
from superfluid.domain.events import Body, EpochBump, Event
from superfluid.domain.reply import Channel
from superfluid.domain.state import SessionState
from superfluid.errors import SessionNotFoundError, SuperfluidError
from superfluid.store.interface import (
    AddEvents,
    ForgetSession,
    Origin,
    PutSession,
    SessionRow,
    SessionStore,
    StoredEvent,
    Write,
)

_MAX_OPEN_SESSIONS = 512
_MAX_OPEN_TOKENS = 8_000_000

EndReason = Literal["unsubscribed", "lagged", "publisher closed", "purged"]


class SessionWatcher(Protocol):
    """Told of a session's events as they become durable, and of text ahead of them. Must not block or raise."""

    def committed(self, events: Sequence[Event]) -> None: ...

    def provisional(self, channel: Channel, text: str) -> None: ...

    def ended(self, reason: EndReason) -> None:
        """Nothing more will come."""
        ...


class BodyCodec(Protocol):
    """Stored form of a record's body, both ways. Decoding what the checksum let through does not fail."""

    def encode(self, body: Body) -> bytes: ...

    def decode(self, data: bytes) -> Body: ...


@dataclass(slots=True, eq=False, weakref_slot=True)
class OpenSession:
    """A session in memory. ``state`` is ahead of the disk by ``waiting`` batches; ``durable_events`` are on it.

    Whoever renders for the session's state and appends the result holds ``lock`` meanwhile.
    ``failure`` is set when the store refused some of its events: this object is of no use any more, and the next
    ``SessionLog.open`` reads the session again. ``cancel_generation`` ends the generation in flight.
    """

    state: SessionState
    base: int | None
    origin: Origin
    start: int
    durable_events: int = 0
    waiting: int = 0
    is_busy: bool = False
    is_purging: bool = False
    failure: SuperfluidError | None = None
    watchers: list[SessionWatcher] = field(default_factory=list)
    cancel_generation: Callable[[], None] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def id(self) -> int:
        return self.state.session

    @property
    def is_idle(self) -> bool:
        return not (self.waiting or self.is_busy or self.is_purging or self.watchers)


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
        self._unsent: list[_Append] = []
        self._is_flush_scheduled = False

    @property
    def store(self) -> SessionStore:
        return self._store

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
        task = self._opening.get(session)
        if task is None:
            task = self._loop.create_task(self._load(session))
            self._opening[session] = task
            task.add_done_callback(lambda _: self._opening.pop(session, None))
        # Shielded: a caller that goes away must not fail the others who wait for the same session.
        return await asyncio.shield(task)

    async def _load(self, session: int) -> OpenSession:
        row, stored = await self._loop.run_in_executor(self._reader, self._read, session)
        state = state_of_row(row)
        state.apply_all(self.decode(stored))
        opened = OpenSession(state, row.base, row.origin, row.start, durable_events=state.events)
        if row.start != self._store.start:
            opened.start = self._store.start
            state.epoch += 1
            await self.append(opened, [EpochBump()])
        self._keep(opened)
        return opened

    def _read(self, session: int) -> tuple[SessionRow, list[StoredEvent]]:
        row = self._store.row(session)
        if row is None:
            raise SessionNotFoundError(f"unknown session {session}")
        if row.is_purged:
            raise SessionNotFoundError(f"session {session} was purged")
        return row, self._store.events(session)

    def _keep(self, opened: OpenSession) -> None:
        self._alive[opened.id] = opened
        is_new = opened.id not in self._open
        self._open[opened.id] = opened
        self._open.move_to_end(opened.id)
        if not is_new:
            return
        tokens = sum(len(session.state.tokens) for session in self._open.values())
        for session in [session for session in self._open.values() if session.is_idle and session is not opened]:
            if len(self._open) <= _MAX_OPEN_SESSIONS and tokens <= _MAX_OPEN_TOKENS:
                break
            tokens -= len(session.state.tokens)
            del self._open[session.id]

    async def read_events(self, opened: OpenSession, first: int = 0, end: int | None = None) -> list[Event]:
        """Durable events of the session, from the store."""
        limit = opened.durable_events if end is None else min(end, opened.durable_events)
        stored = await self._loop.run_in_executor(self._reader, self._store.events, opened.id, first, limit)
        return self.decode(stored)

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

    def decode(self, stored: Sequence[StoredEvent]) -> list[Event]:
        decode = self._codec.decode
        return [Event(event.event_id, event.epoch, event.ts_unix_ms, decode(event.body)) for event in stored]

    # ---- appending

    def create(
        self,
        state: SessionState,
        bodies: Sequence[Body],
        *,
        base: int | None = None,
        origin: Origin = Origin.SESSION_API,
        extra: Sequence[Write] = (),
    ) -> tuple[OpenSession, "asyncio.Future[list[Event]]"]:
        """A new session whose state so far is ``state`` (nothing, or what it inherits), and its first events."""
        opened = OpenSession(state, base, origin, self._store.start, durable_events=state.events)
        future = self.append(opened, bodies, extra=extra)
        self._keep(opened)
        return opened, future

    def append(
        self, opened: OpenSession, bodies: Sequence[Body], *, extra: Sequence[Write] = ()
    ) -> "asyncio.Future[list[Event]]":
        """Numbers and folds ``bodies`` now; the future has the events once they are durable, or StoreUnavailableError.

        All of them, with ``extra`` writes, become durable together or not at all. Appends made in one turn of the event
        loop reach the store together.
        """
        future: asyncio.Future[list[Event]] = self._loop.create_future()
        if opened.failure is not None:
            future.set_exception(opened.failure)
            return future
        state = opened.state
        now = int(self._clock.unix() * 1000)
        events: list[Event] = []
        for body in bodies:
            event = Event(state.events, state.epoch, now, body)
            state.apply(event)
            events.append(event)
        stored = tuple(StoredEvent(e.event_id, e.epoch, now, self._codec.encode(e.body)) for e in events)
        writes: list[Write] = [PutSession(row_of(opened, now))]
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
            if error is None:
                opened.durable_events += len(append.events)
                for watcher in tuple(opened.watchers):
                    watcher.committed(append.events)
                if not append.future.done():
                    append.future.set_result(append.events)
            else:
                self._refuse(append, error)

    def _refuse(self, append: _Append, error: SuperfluidError) -> None:
        opened = append.session
        if opened.failure is None:
            opened.failure = error
            if self._open.get(opened.id) is opened:
                del self._open[opened.id]
            if self._alive.get(opened.id) is opened:
                del self._alive[opened.id]
            for watcher in tuple(opened.watchers):
                watcher.ended("publisher closed")
        if not append.future.done():
            append.future.set_exception(error)
            # Nobody may be waiting for it (a tick's records): that is no reason for a warning about a lost exception.
            append.future.exception()

    async def forget(self, sessions: Sequence[int]) -> None:
        """Erases sessions that nobody uses and nothing inherits from, rows and all. Raises StoreUnavailableError."""
        future: asyncio.Future[Sequence[SuperfluidError | None]] = self._loop.create_future()

        def answered(errors: Sequence[SuperfluidError | None]) -> None:
            self._loop.call_soon_threadsafe(future.set_result, errors)

        for session in sessions:
            self._open.pop(session, None)
            self._alive.pop(session, None)
        self._store.commit([[ForgetSession(session) for session in sessions]], answered)
        for error in await future:
            if error is not None:
                raise error

    def is_in_use(self, session: int) -> bool:
        """Whether somebody generates on the session, watches it, or waits for it to be written."""
        found = self._alive.get(session)
        return found is not None and not found.is_idle

    async def oldest_http_sessions(self, limit: int, *, touched_before_unix_ms: int | None = None) -> list[SessionRow]:
        """See the store's method of that name."""
        store = self._store
        return await self._loop.run_in_executor(
            self._reader,
            lambda: store.oldest_http_sessions(limit, touched_before_unix_ms=touched_before_unix_ms),
        )

    async def settled(self) -> None:
        """Waits until everything appended so far is durable or refused."""
        done = asyncio.Event()

        def answered(_: Sequence[SuperfluidError | None]) -> None:
            self._loop.call_soon_threadsafe(done.set)

        # Behind the flush that this turn of the loop may have scheduled.
        self._loop.call_soon(self._store.commit, (), answered)
        await done.wait()


def state_of_row(row: SessionRow) -> SessionState:
    """An empty state with what the row alone knows: lineage and the standing settings of a fork."""
    return SessionState(
        row.id,
        fork_at=row.fork_at,
        parent=row.parent,
        epoch=row.epoch,
        qos_class=row.qos_class,
        is_batch_invariant=row.is_batch_invariant,
    )


def row_of(opened: OpenSession, now_unix_ms: int) -> SessionRow:
    """The row that goes with the session's state."""
    state = opened.state
    return SessionRow(
        id=state.session,
        parent=state.parent,
        base=opened.base,
        fork_at=state.fork_at,
        origin=opened.origin,
        epoch=state.epoch,
        start=opened.start,
        events=state.events,
        tokens=len(state.tokens),
        open_tool_calls=len(state.open_calls),
        title=state.title,
        is_archived=state.is_archived,
        meta_version=state.meta_version,
        generation=state.generation,
        is_purged=state.is_purged,
        touched_unix_ms=now_unix_ms,
        qos_class=state.qos_class,
        is_batch_invariant=state.is_batch_invariant,
    )
