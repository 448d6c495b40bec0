"""Purges: sessions end for good, and what was said in them is erased. Runs on the event loop.

    marked       no more input, no more forks; generations are cancelled and waited for
    ended        one transaction: the children of a reroot get their own copies, the sessions their last records,
                 and the store notes that there is something to erase
    erased       keepers outside the store first, then the store itself (``sessions/erasing.py``)

A daemon that dies before the second step has purged nothing. One that dies behind it finishes the third when it is
started again.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from msgspec import Struct
from msgspec.structs import replace

from superfluid.domain.events import Body, Purged, PurgeMode, Rerooted, ToolExpired, ToolExpiredReason
from superfluid.errors import DamagedRecordError, SessionBusyError, SessionNotFoundError, SessionRefusedError
from superfluid.sessions.erasing import Eraser, Erasures
from superfluid.sessions.log import EncodedBody, SessionLog
from superfluid.sessions.open_session import OpenSession
from superfluid.sessions.rules import purged_error, require_not_purging
from superfluid.store.interface import BeginErasure, CopyInherited, PutSession, SessionRow, StoredEvent, Write

DRAIN_SECONDS = 10.0


class _Child(Struct, frozen=True):
    """A child that lives on, and what it had inherited."""

    session: OpenSession
    inherited: list[StoredEvent]
    rerooted: EncodedBody


class _Target(Struct, frozen=True):
    """A session that is to go. If it is not ``opened``, its row is all that has to change."""

    row: SessionRow
    opened: OpenSession | None


class SessionPurger:
    """One for each log. ``drain_seconds`` is how long generations may take to end once they are cancelled."""

    def __init__(self, log: SessionLog, *, drain_seconds: float = DRAIN_SECONDS) -> None:
        self._log = log
        self._drain_seconds = drain_seconds
        self._erasures = Erasures(log)
        # Purges wait for generations side by side, and go on one after the other.
        self._lock = asyncio.Lock()

    def add_eraser(self, eraser: Eraser) -> None:
        """Lets a keeper outside the store join in. Must come before ``finish``."""
        self._erasures.add_eraser(eraser)

    async def purge(self, session: int, expected_generation: int, mode: PurgeMode) -> list[int]:
        """Purges ``session``, with all that descends from it or without; the ids of what is gone, ``session`` last.

        Raises SessionRefusedError for another generation, SessionBusyError if a generation does not end in time,
        DamagedRecordError if a child's inheritance cannot be copied: nothing was purged then. Raises
        StoreUnavailableError if the store fails, which says so if only the erasing is left to do.
        """
        generation = await self._generation(session)
        if generation != expected_generation:
            raise SessionRefusedError(
                f"session {session} has generation {generation}, not {expected_generation}: this is a conflict, and "
                "nothing was purged"
            )
        marked: list[int] = []
        try:
            await self._mark(session, mode, marked)
            await self._drain(marked)
            async with self._lock:
                gone = await self._end(session, mode)
                await self._erasures.run()
        finally:
            self._log.unmark_purging(marked)
        return gone

    async def finish(self) -> None:
        """Erases what an earlier purge, or an earlier daemon, could not. Raises StoreUnavailableError."""
        async with self._lock:
            await self._erasures.run()

    # ---- marking and draining

    async def _generation(self, session: int) -> int:
        try:
            opened = await self._log.open(session)
        except DamagedRecordError:
            # What cannot be read can still be purged.
            return (await self._log.live_row(session)).generation
        require_not_purging(opened)
        return opened.state.generation

    async def _mark(self, session: int, mode: PurgeMode, marked: list[int]) -> None:
        """Marks all that is to go; ``marked`` is what was marked so far."""
        new = [session]
        while new:
            self._log.mark_purging(new)
            marked += new
            # A child that was on its way when its parent was marked is in the store then.
            await self._log.settled()
            known = set(marked)
            new = [row.id for row in await self._rows(session, mode) if row.id not in known]

    async def _drain(self, sessions: Sequence[int]) -> None:
        found = [opened for session in sessions if (opened := await self._log.find(session)) is not None]
        for opened in found:
            if opened.cancel_generation is not None:
                opened.cancel_generation()
        try:
            async with asyncio.timeout(self._drain_seconds):
                for opened in found:
                    await opened.generation_ended()
        except TimeoutError:
            busy = next(opened.id for opened in found if opened.is_busy)
            raise SessionBusyError(
                f"session {busy} is generating; it was cancelled and did not end within {self._drain_seconds:g} s, so "
                "nothing was purged"
            ) from None

    async def _rows(self, session: int, mode: PurgeMode) -> list[SessionRow]:
        """Those that are to go, in order; nothing if another purge came first."""
        store = self._log.store

        def read() -> list[SessionRow]:
            row = store.row(session)
            if row is None or row.is_purged:
                return []
            return [row] if mode is PurgeMode.REROOT else [*store.descendants(session), row]

        return await self._log.in_reader(read)

    # ---- ending

    async def _end(self, session: int, mode: PurgeMode) -> list[int]:
        """One transaction; then whoever watches the sessions is told. The ids of what is gone."""
        await self._log.settled()
        rows = await self._rows(session, mode)
        if not rows:
            raise purged_error(session)
        async with AsyncExitStack() as locks:
            children = [] if mode is PurgeMode.CASCADE else await self._children(session, locks)
            targets = [_Target(row, await self._open_if_needed(row)) for row in rows]
            opened = [target.opened for target in targets if target.opened is not None]
            # Nothing is awaited from here to the append: what was read is still so.
            for found in (*opened, *(child.session for child in children)):
                if found.failure is not None:
                    raise found.failure
            await self._log.append_together(*self._records(targets, children, mode))
        for found in opened:
            self._log.close_purged(found)
        return [row.id for row in rows]

    async def _open_if_needed(self, row: SessionRow) -> OpenSession | None:
        """The session if somebody has it open, or has calls to expire. Not all of them: that is a reading each."""
        opened = await self._log.find(row.id)
        if opened is None and row.open_tool_calls:
            try:
                return await self._log.open_marked(row.id)
            except (DamagedRecordError, SessionNotFoundError):
                # It cannot be read, or is being dropped.
                return None
        return opened

    async def _children(self, session: int, locks: AsyncExitStack) -> list[_Child]:
        """With a lock on each, so that none is dropped meanwhile."""
        children = []
        for row in await self._log.in_reader(lambda: self._log.store.children(session)):
            try:
                opened = await self._log.open_marked(row.id)
            except SessionNotFoundError as error:
                raise SessionBusyError(
                    f"session {row.id}, a child of session {session}, is being dropped: nothing was purged, try again"
                ) from error
            # No deadline: a lock is held while one record is made and stored.
            await locks.enter_async_context(opened.lock)
            children.append(await self._child(session, opened))
        return children

    async def _child(self, session: int, opened: OpenSession) -> _Child:
        log = self._log
        if opened.base is None:
            return _Child(opened, [], log.encode(Rerooted(session, ())))

        def read() -> _Child:
            inherited = log.store.events(opened.id, 0, opened.state.fork_at)
            prefix = tuple((event.event_id, _copied(event.body)) for event in log.decode(inherited))
            return _Child(opened, inherited, log.encode(Rerooted(session, prefix)))

        return await self._log.in_reader(read)

    def _records(
        self, targets: Sequence[_Target], children: Sequence[_Child], mode: PurgeMode
    ) -> tuple[list[tuple[OpenSession, list[EncodedBody]]], list[Write]]:
        """What to append to the open sessions, and what else to write."""
        parts: list[tuple[OpenSession, list[EncodedBody]]] = []
        writes: list[Write] = []
        for child in children:
            if child.inherited:
                writes.append(CopyInherited(child.session.id, tuple(child.inherited)))
            child.session.base = None
            parts.append((child.session, [child.rerooted]))
        rows = {target.row.id: target.row for target in targets}
        for target in targets:
            row, opened = target.row, target.opened
            content_end = None
            if opened is None:
                writes.append(PutSession(replace(row, is_purged=True, generation=row.generation + 1, title=None)))
            else:
                last = [self._log.encode(body) for body in _last_bodies(opened, mode)]
                content_end = opened.state.events + len(last) - 1
                parts.append((opened, last))
            writes.append(BeginErasure(row.id, _shared_events(row, rows, children), content_end))
        return parts, writes


def _last_bodies(opened: OpenSession, mode: PurgeMode) -> list[Body]:
    expired = [ToolExpired(call_id, ToolExpiredReason.PURGED) for call_id, _ in opened.state.open_calls]
    return [*expired, Purged(opened.state.generation + 1, mode)]


def _copied(body: Body) -> Body:
    """What an earlier reroot has copied is among the events copied now; copied twice, it would double every time."""
    return Rerooted(body.purged_parent, ()) if isinstance(body, Rerooted) else body


def _shared_events(row: SessionRow, rows: dict[int, SessionRow], children: Sequence[_Child]) -> int:
    """How many of a purged session's first events others that stay have as well."""
    shared = max((len(child.inherited) for child in children), default=0)
    base, end = row.base, row.fork_at
    while base is not None and (above := rows.get(base)) is not None:
        base, end = above.base, min(end, above.fork_at)
    return shared if base is None else max(shared, end)
