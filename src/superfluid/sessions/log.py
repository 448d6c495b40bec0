"""The open sessions and the way their events reach the store. Runs on the daemon's event loop.

An event is numbered and folded into its session's state when it is appended, and published when it is durable. If the
store refuses it, the session is closed and read again from what is durable: nothing of what was refused was ever shown.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec

from superfluid.clock import Clock
from superfluid.domain.events import Body, EpochBump, Event
from superfluid.domain.state import SessionState
from superfluid.errors import DamagedRecordError, SessionNotFoundError, SuperfluidError
from superfluid.sessions.commits import CommitQueue
from superfluid.sessions.open_session import (
    EndReason,
    OpenSession,
    TurnPhase,
    check_lineage,
    row_of,
    state_of_row,
)
from superfluid.sessions.rules import purged_error, require_not_purging, unknown_error
from superfluid.store.interface import (
    AddEvents,
    Batch,
    ForgetSession,
    Origin,
    PutPrefix,
    PutSession,
    RequireLength,
    SessionRow,
    SessionStore,
    StoredEvent,
    Write,
)

logger = logging.getLogger("superfluid_daemon")

EncodedBody = tuple[Body, bytes]

_T = TypeVar("_T")
_MAX_OPEN_SESSIONS = 512
_MAX_OPEN_TOKENS = 8_000_000


class BodyCodec(Protocol):
    """Stored form of a record's body, both ways. Decoding what the checksum let through does not fail."""

    def encode(self, body: Body) -> bytes: ...

    def decode(self, data: bytes) -> Body: ...


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
        # How many purges have each session in hand.
        self._purging: dict[int, int] = {}
        self._commits = CommitQueue(store, on_refused=self._close)

    @property
    def store(self) -> SessionStore:
        return self._store

    @property
    def open_sessions(self) -> int:
        """How many are held in memory."""
        return len(self._open)

    # ---- opening

    async def open(self, session: int) -> OpenSession:
        """The session, read from the store on first use; its epoch is raised, durably, once per start. A new one is
        there when it is on the disk.

        Raises SessionNotFoundError for one that never was or was purged, DamagedRecordError for one that does not read.
        """
        found = self._alive.get(session)
        while found is None or found.failure is not None or found.creation is not None:
            if found is not None and found.creation is not None:
                # No deadline: the store answers.
                await asyncio.wait((found.creation,))
                found = self._alive.get(session)
                continue
            if session in self._forgetting:
                raise unknown_error(session)
            self._require_unmarked(session)
            found = await self._read_in(session)
            if found.failure is not None:
                # It failed or was dropped before this task came to run: it would tell a watcher nothing.
                found = self._alive.get(session)
        if found.state.is_purged:
            raise purged_error(session)
        self._keep(found)
        return found

    async def _read_in(self, session: int) -> OpenSession:
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
            await self.append(opened, [], phase=TurnPhase.LAST)
        # Nobody could find it so far, so nobody could mark it.
        opened.is_purging = session in self._purging
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
        row = self._live_row(session)
        state = state_of_row(row)
        events = self.decode(self._store.events(session))
        check_lineage(row, events)
        state.apply_all(events)
        if state.events < row.events:
            raise DamagedRecordError(f"session {session}: the stored record of event {state.events} is missing")
        return row, state

    async def live_row(self, session: int) -> SessionRow:
        """Its row, without opening it, which would cost a reading and an event. Raises SessionNotFoundError."""
        row = await self.in_reader(lambda: self._live_row(session))
        self._require_unmarked(session)
        return row

    def _live_row(self, session: int) -> SessionRow:
        row = self._store.row(session)
        if row is None:
            raise unknown_error(session)
        if row.is_purged:
            raise purged_error(session)
        return row

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
        try:
            events = await self.in_reader(lambda: self.decode(self._store.events(session, first, limit)))
        except DamagedRecordError:
            if opened.state.is_purged:
                # It was erased meanwhile.
                raise purged_error(session) from None
            raise
        if len(events) < limit - first:
            raise opened.failure or DamagedRecordError(
                f"session {session}: the stored record of event {first + len(events)} is missing"
            )
        return events

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

    def encode(self, body: Body) -> EncodedBody:
        """The body with its stored form, for ``append_together``. Takes time in proportion to its length."""
        return body, self._codec.encode(body)

    def decode(self, stored: Sequence[StoredEvent]) -> list[Event]:
        """The events of what the store has read."""
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
        events. Raises the failure of ``base`` if it has one, and SessionNotFoundError if it is being purged."""
        if base is not None:
            if base.failure is not None:
                raise base.failure
            require_not_purging(base)
        base_id = None if base is None else base.id
        opened = OpenSession(state, base_id, origin, self._store.start, durable_events=state.events)
        future = opened.creation = self.append(opened, bodies, extra=extra)
        future.add_done_callback(opened.created)
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
        failure = opened.failure or (purged_error(opened.id) if opened.state.is_purged else None)
        if failure is not None:
            future: asyncio.Future[list[Event]] = self._loop.create_future()
            future.set_exception(failure)
            # Nobody may be waiting for it (a tick's records): that is no reason for a warning about a lost exception.
            future.exception()
            return future
        events, writes = self._fold(opened, [self.encode(body) for body in bodies], phase)
        return self._commits.send([(opened, events)], [*writes, *extra])

    def append_together(
        self, parts: Sequence[tuple[OpenSession, Sequence[EncodedBody]]], extra: Sequence[Write]
    ) -> "asyncio.Future[list[Event]]":
        """Like ``append``, to several sessions at once, all or nothing. ``extra`` goes before them; none has failed."""
        folded: list[tuple[OpenSession, list[Event]]] = []
        writes = [*extra]
        for opened, bodies in parts:
            events, more = self._fold(opened, bodies, None)
            folded.append((opened, events))
            writes += more
        return self._commits.send(folded, writes)

    def _fold(
        self, opened: OpenSession, bodies: Sequence[EncodedBody], phase: TurnPhase | None
    ) -> tuple[list[Event], list[Write]]:
        state = opened.state
        now = int(self._clock.unix() * 1000)
        events: list[Event] = []
        stored: list[StoredEvent] = []
        for body, data in bodies:
            event = Event(state.events, state.epoch, now, body)
            state.apply(event)
            events.append(event)
            stored.append(StoredEvent(event.event_id, event.epoch, now, data))
        if phase is not None:
            opened.is_generating = phase is not TurnPhase.LAST
        writes: list[Write] = []
        if phase is not TurnPhase.MIDDLE and (stored or phase is TurnPhase.LAST):
            writes.append(PutSession(row_of(opened, state)))
        if stored:
            writes.append(AddEvents(opened.id, tuple(stored)))
        elif writes:
            # The row counts events that may be on their way, and be refused.
            writes.append(RequireLength(opened.id, state.events))
        return events, writes

    def _close(self, opened: OpenSession, error: SuperfluidError, reason: EndReason = "publisher closed") -> None:
        if self._open.get(opened.id) is opened:
            del self._open[opened.id]
        if self._alive.get(opened.id) is opened:
            del self._alive[opened.id]
        opened.fail(error, reason)

    async def settled(self) -> None:
        """Waits until everything appended so far is durable or refused."""
        await self._commits.settled()

    async def write(self, batch: Batch) -> None:
        """Commits what belongs to no open session. Raises StoreUnavailableError."""
        await self._commits.write(batch)

    # ---- dropping

    def is_in_use(self, session: int) -> bool:
        """Whether somebody generates on the session, watches it, reads it in, or waits for it to be written."""
        found = self._alive.get(session)
        is_claimed = session in self._opening or session in self._purging
        return is_claimed or (found is not None and not found.is_idle)

    async def forget(
        self, sessions: Sequence[int], *, erase_states: Callable[[Sequence[int]], Awaitable[None]] | None = None
    ) -> list[int]:
        """Erases sessions, rows and all, but for those that are in use or being dropped already, and those that others
        inherit from. ``erase_states`` comes first, for what is kept of them besides: nobody can open them from then on.
        Those it tried. Raises StoreUnavailableError, and what ``erase_states`` raises.
        """
        dropped = [session for session in sessions if not (session in self._forgetting or self.is_in_use(session))]
        if not dropped:
            return []
        for session in dropped:
            found = self._alive.get(session)
            if found is not None:
                self._close(found, SessionNotFoundError(f"session {session} was dropped: it was old, and had no name"))
        self._forgetting.update(dropped)
        try:
            if erase_states is not None:
                await erase_states(dropped)
            await self.write([ForgetSession(session) for session in dropped])
        finally:
            self._forgetting.difference_update(dropped)
        return dropped

    async def oldest_http_sessions(self, limit: int, *, touched_before_unix_ms: int | None = None) -> list[SessionRow]:
        """See the store's method of that name."""
        return await self.in_reader(
            lambda: self._store.oldest_http_sessions(limit, touched_before_unix_ms=touched_before_unix_ms)
        )

    # ---- purging

    def mark_purging(self, sessions: Iterable[int]) -> None:
        """From here on they take no more input and no more children; those that are not open cannot be opened."""
        for session in sessions:
            self._purging[session] = self._purging.get(session, 0) + 1
            if (found := self._alive.get(session)) is not None:
                found.is_purging = True

    def unmark_purging(self, sessions: Iterable[int]) -> None:
        """Takes back one ``mark_purging``. Those that were purged stay so."""
        for session in sessions:
            self._purging[session] -= 1
            if self._purging[session]:
                continue
            del self._purging[session]
            if (found := self._alive.get(session)) is not None:
                found.is_purging = False

    def _require_unmarked(self, session: int) -> None:
        if session in self._purging:
            raise purged_error(session)

    async def find(self, session: int) -> OpenSession | None:
        """The session if it is in memory, or on its way there."""
        if session in self._opening:
            try:
                await asyncio.shield(self._opening[session])
            except SuperfluidError:
                return None
        found = self._alive.get(session)
        return None if found is None or found.failure is not None else found

    async def open_marked(self, session: int) -> OpenSession:
        """Like ``open``, also while a purge has it in hand."""
        if session in self._forgetting:
            raise unknown_error(session)
        return await self.find(session) or await self._read_in(session)

    def close_purged(self, opened: OpenSession) -> None:
        """Tells whoever has it that it was purged."""
        self._close(opened, purged_error(opened.id), "purged")
